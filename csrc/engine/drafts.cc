#include "engine/drafts.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace sinkstream {

namespace {

constexpr double kRemembered = 64;  // verified guesses of each length
constexpr double kPriorGuesses = 2;
constexpr std::array<double, kNgrams.size()> kPriorShares = {0.9, 0.75, 0.5, 0.4};

constexpr double kRowPrice = 1.0 / 3;  // of a step of one row
constexpr double kLeastRowPrice = 1e-3;
constexpr double kMeanSteps = 16;         // that a mean looks back on
constexpr double kOutlier = 3;            // a step this many times as long counts as this
constexpr double kForgotten = 1.0 / 512;  // of what is known of other sizes, with each step
constexpr double kPriorSteps = 0.25;

double prior_price(double rows) { return 1 + kRowPrice * (rows - 1); }

// The finalizer of splitmix64: each bit of the result depends on all bits of both.
uint64_t mixed(uint64_t hash, uint64_t with) {
  hash += with + 0x9E3779B97F4A7C15;
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EB;
  return hash ^ (hash >> 31);
}

// The upper half of a hash, which tells entries apart; the lower half says where they are.
uint64_t tag_of(uint64_t hash) { return (hash >> 32 | 1) << 32; }

}  // namespace

uint64_t TextTail::hash(int64_t count) const {
  if (length_ < count) return 0;
  uint64_t hash = mixed(salt_, static_cast<uint64_t>(count));
  for (int64_t i = length_ - count; i < length_; ++i) {
    hash = mixed(hash, static_cast<uint32_t>(last_[static_cast<size_t>(i % kNgrams.front())]));
  }
  return hash == 0 ? 1 : hash;
}

NgramPool::NgramPool(int64_t entries) : entries_(static_cast<size_t>(entries)) {
  SINKSTREAM_CHECK(entries == 0 || std::has_single_bit(static_cast<uint64_t>(entries)),
                   "a pool has ", entries, " entries, not a power of two");
}

void NgramPool::learn(TextTail* tail, int32_t token) {
  if (!entries_.empty()) {
    for (const int64_t count : kNgrams) {
      const uint64_t hash = tail->hash(count);
      if (hash == 0) continue;
      entries_[hash & (entries_.size() - 1)] = tag_of(hash) | static_cast<uint32_t>(token);
    }
  }
  tail->append(token);
}

void NgramPool::guess(TextTail tail, int64_t most, std::vector<Guess>* guesses) const {
  if (entries_.empty()) return;
  while (most-- > 0) {
    const size_t before = guesses->size();
    for (size_t n = 0; n < kNgrams.size() && guesses->size() == before; ++n) {
      const uint64_t hash = tail.hash(kNgrams[n]);
      const uint64_t found = hash == 0 ? 0 : entries_[hash & (entries_.size() - 1)];
      if (found >> 32 << 32 != tag_of(hash)) continue;
      guesses->push_back({.token = static_cast<int32_t>(static_cast<uint32_t>(found)),
                          .ngram = static_cast<int32_t>(n)});
    }
    if (guesses->size() == before) return;
    tail.append(guesses->back().token);
  }
}

void Acceptance::count(std::span<const Guess> guesses, int64_t accepted) {
  const auto tried = std::min<size_t>(guesses.size(), static_cast<size_t>(accepted) + 1);
  for (size_t i = 0; i < tried; ++i) {
    Share& share = shares_[static_cast<size_t>(guesses[i].ngram)];
    share.right += static_cast<int64_t>(i) < accepted ? 1 : 0;
    share.all += 1;
    if (share.all > kRemembered) {
      share.right /= 2;
      share.all /= 2;
    }
  }
}

double Acceptance::of(const Guess& guess) const {
  const Share& share = shares_[static_cast<size_t>(guess.ngram)];
  const double prior =
      all_ != nullptr ? all_->of(guess) : kPriorShares[static_cast<size_t>(guess.ngram)];
  return (share.right + prior * kPriorGuesses) / (share.all + kPriorGuesses);
}

// What is known of other sizes follows slowly: with a longer context, all steps take longer.
void StepPrices::learn(int64_t rows, double seconds) {
  if (seconds <= 0) return;
  const auto size =
      std::min<size_t>(std::bit_width(static_cast<uint64_t>(rows - 1)), means_.size() - 1);
  Mean& mean = means_[size];
  if (mean.weight >= 1) {
    const double drift = std::clamp(seconds / mean.seconds, 0.5, 2.0) - 1;
    for (Mean& other : means_) {
      other.weight *= 1 - kForgotten;
      if (&other != &mean) other.seconds *= 1 + drift / kMeanSteps;
    }
    seconds = std::min(seconds, kOutlier * mean.seconds);
  }
  mean.weight = std::min(mean.weight + 1, kMeanSteps);
  mean.seconds += (seconds - mean.seconds) / mean.weight;
  mean.rows += (static_cast<double>(rows) - mean.rows) / mean.weight;
}

// A line through what is known. Beyond it, and where little is known, the line of the assumption.
double StepPrices::of(int64_t rows) const {
  const double wanted = static_cast<double>(rows);
  double from = 0, price = 0, one = 1;  // the last point, and a step of one row
  for (const Mean& mean : means_) {
    if (mean.weight == 0) continue;
    if (from == 0) {
      one = mean.seconds / prior_price(mean.rows);
      if (wanted <= mean.rows) return one * prior_price(wanted);
      from = mean.rows;
      price = mean.seconds;
      continue;
    }
    const double prior = price + (mean.rows - from) * kRowPrice * one;
    const double known =
        (mean.seconds * mean.weight + prior * kPriorSteps) / (mean.weight + kPriorSteps);
    const double next = std::max(known, price + (mean.rows - from) * kLeastRowPrice * one);
    if (wanted <= mean.rows) return price + (next - price) * (wanted - from) / (mean.rows - from);
    from = mean.rows;
    price = next;
  }
  return from == 0 ? prior_price(wanted) : price + (wanted - from) * kRowPrice * one;
}

int64_t drafts_worth(std::span<const Guess> guesses, const Acceptance& acceptance,
                     const StepPrices& prices, StepValue* step) {
  int64_t best = 0;
  double best_tokens = step->tokens, best_rate = step->tokens / prices.of(step->rows);
  double chance = 1, tokens = step->tokens;
  for (int64_t k = 1; k <= std::ssize(guesses); ++k) {
    chance *= acceptance.of(guesses[static_cast<size_t>(k - 1)]);
    tokens += chance;
    const double price = prices.of(step->rows + k);
    if (price > step->most_price) break;
    if (tokens / price > best_rate) {
      best = k;
      best_rate = tokens / price;
      best_tokens = tokens;
    }
  }
  step->rows += best;
  step->tokens = best_tokens;
  return best;
}

}  // namespace sinkstream
