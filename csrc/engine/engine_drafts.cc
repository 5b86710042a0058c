// What the engine drafts and what it keeps of it: Note [Drafts] of drafts.h.
//
// Note: [Who pays for drafts]
// All streams of a step wait until it has ended. So with several, drafts make a step at most a
// little longer (kMostSlowdown), and the rows that there are for drafts are shared by those that
// have guesses. A model that is loaded with a number of drafts takes all guesses up to it, whatever
// it costs: its owner has said so. A request can only ask for fewer.
//
// Note: [Guesses end the look-ahead]
// What follows a token can be guessed only once the host knows the token. So an engine that guesses
// has one step in flight, even where the runner samples. There this must pay for the pause between
// two steps as well, which was not measured: only a number given to `load` turns guesses on.
#include <algorithm>
#include <limits>
#include <numeric>

#include "cache/window.h"
#include "engine/engine.h"
#include "sampling/sample_errors.h"

namespace sinkstream {

static_assert(kMaxSpeculation < kMostRejected);

namespace {

// Masks after the first one are computed one by one, and all streams wait.
constexpr std::chrono::milliseconds kMostMaskTime{10};

Sampled sampled_of(const SampledToken& token, int64_t index, int64_t vocab) {
  if (!token.is_finite) throw non_finite_logits(index, "some are not");
  if (token.token < 0) throw no_token_left(index, vocab);
  return {.token = token.token, .logprob = token.logprob, .top = {}};
}

}  // namespace

// No layer has a state, which has no lane for a part of a step, and the runner has no guesses of
// its own. Where the runner samples: Note [Guesses end the look-ahead].
bool Engine::may_guess() const {
  const bool samples_here = runner_.seats() == 0;
  return options_.speculation.value_or(samples_here ? kMaxSpeculation : 0) > 0 &&
         options_.pools.states == nullptr && runner_.drafts() == 0;
}

int64_t Engine::most_in_flight() const {
  return ngrams_.bytes() > 0 ? 1 : runner_.most_in_flight();
}

// Adds drafts to the plan's rows, if it only decodes.
void Engine::draft() {
  if (ngrams_.bytes() == 0) return;
  drafting_.clear();
  for (const std::unique_ptr<Sequence>& s : running_) {
    s->guesses.clear();
    s->drafted.clear();
  }
  const int64_t decoding = std::ssize(plan_.rows);
  if (plan_.admit > 0 || decoding == 0) return;
  for (PlanRow& row : plan_.rows) {
    Sequence& sequence = *running_[static_cast<size_t>(row.sequence)];
    if (sequence.prompt_left() > 0) return;
    if (guess(sequence, 1)) drafting_.push_back(&row);
  }
  if (drafting_.empty()) return;
  const bool takes_all = options_.speculation.has_value();
  drafted_steps_ = takes_all ? 0 : (drafted_steps_ + 1) % (kDraftedSteps + 1);
  if (drafted_steps_ == kDraftedSteps) return;
  const double price = prices_.of(decoding);
  StepValue step{.rows = decoding,
                 .tokens = static_cast<double>(decoding),
                 .most_price = takes_all || decoding == 1 ? std::numeric_limits<double>::infinity()
                                                          : kMostSlowdown * price};
  // A row of logits for each token of the rows with drafts, even where the runner samples; which of
  // them come first changes.
  int64_t rows_left = std::min(most_scored_rows(model_.vocab()), model_.max_tokens() - decoding);
  const int64_t each = std::max<int64_t>(rows_left / std::ssize(drafting_) - 1, 1);
  std::rotate(drafting_.begin(),
              drafting_.begin() + flights_.current_step() % std::ssize(drafting_), drafting_.end());
  for (PlanRow* const row : drafting_) {
    Sequence& sequence = *running_[static_cast<size_t>(row->sequence)];
    const int64_t most = std::min(each, rows_left - 1);
    if (most <= 0) break;
    guess(sequence, most);
    const auto guesses = std::span<const Guess>(sequence.guesses)
                             .first(static_cast<size_t>(
                                 std::min(std::ssize(sequence.guesses), most_drafts(sequence))));
    row->drafts = takes_all ? std::ssize(guesses)
                            : drafts_worth(guesses, sequence.acceptance, prices_, &step);
    rows_left -= row->drafts > 0 ? row->drafts + 1 : 0;
  }
  const bool pays = takes_all || step.tokens / prices_.of(step.rows) >=
                                     kLeastGain * static_cast<double>(decoding) / price;
  for (PlanRow* const row : drafting_) {
    if (!pays) row->drafts = 0;
    row->count = 1 + row->drafts;
    Sequence& sequence = *running_[static_cast<size_t>(row->sequence)];
    sequence.drafted.push_back(sequence.last_token);
    for (int64_t i = 0; i < row->drafts; ++i) {
      sequence.drafted.push_back(sequence.guesses[static_cast<size_t>(i)].token);
    }
  }
}

// The drafts that a sequence may have: as many as are asked for, and none after its last token.
int64_t Engine::most_drafts(const Sequence& sequence) const {
  const int64_t asked = std::min(sequence.sampler.params().speculation.value_or(kMaxSpeculation),
                                 options_.speculation.value_or(kMaxSpeculation));
  return std::min(asked, sequence.tokens_left() - 1);
}

// Guesses at most `most` tokens after a sequence's last one. Returns whether there are any.
bool Engine::guess(Sequence& sequence, int64_t most) {
  sequence.guesses.clear();
  if (most_drafts(sequence) <= 0) return false;
  TextTail tail = sequence.tail;
  tail.append(sequence.last_token);
  ngrams_.guess(tail, most, &sequence.guesses);
  return !sequence.guesses.empty();
}

// Takes what is sampled after the row's token and after each of its drafts, until a sample differs
// from the next draft or ends the sequence: Note [Drafts] of drafts.h. Each but the first follows a
// draft that stays in the cache.
void Engine::take_samples(const FlightRow& row, const StepResult& result, Sequence& sequence,
                          StepRecord* record) {
  const auto guesses = std::span<const Guess>(sequence.guesses);
  const Clock::time_point late = options_.now() + kMostMaskTime;
  const bool samples_here = row.is_sampled_on_host();
  const int64_t most = samples_here ? 1 + row.drafts : std::ssize(result.tokens);
  sequence.stats.draft_tokens += row.drafts;
  totals_.draft_tokens += row.drafts;
  int64_t right = 0;  // guesses that were sampled
  for (int64_t i = 0; i < most; ++i) {
    if (i > 0) {
      if (sequence.grammar && options_.now() > late) break;  // the next step begins with this token
      ++sequence.stats.accepted_tokens;
      ++totals_.accepted_tokens;
      sequence.cache->commit_in_flight(1);
      count_progress(1, sequence, record);
    }
    const Sampled sampled = samples_here ? sample(sequence, result.logits + i * model_.vocab())
                                         : sampled_of(result.tokens[static_cast<size_t>(i)],
                                                      sequence.cache->length(), model_.vocab());
    right += i < std::ssize(guesses) && guesses[static_cast<size_t>(i)].token == sampled.token;
    take_token(sequence, sampled);
    if (sequence.phase == Phase::kFinished) return;
    if (samples_here && right == i) break;
  }
  const auto known = std::min(guesses.size(), static_cast<size_t>(row.drafts) + 1);
  sequence.acceptance.count(guesses.first(known), right);
  acceptance_.count(guesses.first(known), right);
}

// Learns what a step takes that has only decoded.
void Engine::learn_price(const Flight& flight) {
  if (flight.record.prompt_tokens > 0 || flight.rows.empty()) return;
  const int64_t rows =
      std::accumulate(flight.rows.begin(), flight.rows.end(), int64_t{0},
                      [](int64_t sum, const FlightRow& row) { return sum + row.count; });
  const std::chrono::duration<double> taken = flight.record.end - flight.record.begin;
  prices_.learn(rows, taken.count());
}

}  // namespace sinkstream
