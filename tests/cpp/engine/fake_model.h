// A language model by rule: the next token is a hash of all tokens before it. So every test knows
// the right reply, and a token that is lost, duplicated or in the wrong cache changes the rest.
// Like a real model it has no state but the cache: each token's row holds the hash up to it, so
// that a page mixed up, lost or shared by mistake shows, too. So does the state of each layer that
// has one: a step fails if the lane it reads is not that of exactly the tokens before it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <semaphore>
#include <span>
#include <utility>
#include <vector>

#include "common/check.h"
#include "model/language_model.h"
#include "model/step_runner.h"

namespace sinkstream {

inline constexpr int64_t kFakeVocab = 300;
inline constexpr PageShape kFakeShape{.kv_heads = 1, .head_dim = 2};

// FNV-1a over token ids.
class TokenHash {
 public:
  void add(int32_t token) { state_ = (state_ ^ static_cast<uint32_t>(token)) * 1099511628211u; }
  int32_t next_token() const { return static_cast<int32_t>((state_ >> 20) % kFakeVocab); }

  // Writes the hash of the tokens up to `index` to that token's row: its key, two floats wide.
  void write(const SequenceCache& cache, int64_t index) const {
    for (int64_t layer = 0; layer < cache.layers(); ++layer) {
      if (!cache.has_pages(layer)) continue;
      for (const int64_t half : {0, 1}) {
        const auto bits = static_cast<uint32_t>(state_ >> (32 * half));
        std::memcpy(element(cache, layer, index, half), &bits, sizeof(bits));
      }
    }
  }
  void read(const SequenceCache& cache, int64_t index) {
    int64_t first = 0, last = cache.layers() - 1;  // with pages
    while (!cache.has_pages(first)) ++first;
    while (!cache.has_pages(last)) --last;
    state_ = 0;
    for (const int64_t half : {0, 1}) {
      uint32_t bits, again;
      std::memcpy(&bits, element(cache, first, index, half), sizeof(bits));
      std::memcpy(&again, element(cache, last, index, half), sizeof(again));
      SINKSTREAM_CHECK(bits == again, "layers differ at index ", index);
      state_ |= uint64_t{bits} << (32 * half);
    }
  }

  // A layer's state after `count` tokens with this hash: zeros after none.
  using State = std::array<uint64_t, 3>;
  State state_of(int64_t layer, int64_t count) const {
    if (count == 0) return {};
    const auto number = static_cast<uint64_t>(count), its_layer = static_cast<uint64_t>(layer);
    return {state_, number, state_ * (its_layer + 1)};
  }
  void set_state(const State& state) {
    if (state[1] > 0) state_ = state[0];
  }

 private:
  static std::byte* element(const SequenceCache& cache, int64_t layer, int64_t index, int64_t dim) {
    const Slot at = cache.slot(layer, index);
    return at.page + kFakeShape.key_element(at.row, dim) * int64_t{sizeof(float)};
  }

  uint64_t state_ = 14695981039346656037u;
};

// What greedy sampling must produce after `prompt`.
inline std::vector<int32_t> expected_reply(const std::vector<int32_t>& prompt, int64_t count) {
  TokenHash hash;
  for (const int32_t token : prompt) hash.add(token);
  std::vector<int32_t> reply;
  for (int64_t i = 0; i < count; ++i) {
    reply.push_back(hash.next_token());
    hash.add(reply.back());
  }
  return reply;
}

// A model that is a rule for the tokens of one span. Samples its tokens itself once it has a runner
// of its own (fake_runner.h).
class RuleModel : public LanguageModel {
 public:
  int64_t max_tokens() const override { return max_tokens_; }
  StepRunner* step_runner() override { return step_runner_.get(); }

  void forward(std::span<const ForwardSpan> spans, float* logits) override {
    if (gate != nullptr) gate->acquire();
    if (before_forward) before_forward(forwards.load());
    if (before_results) before_results(forwards.load());
    int64_t tokens = 0;
    for (const ForwardSpan& span : spans) {
      tokens += span.count;
      append_to_states(*span.cache, span.cache->length() + span.in_flight,
                       {span.tokens, static_cast<size_t>(span.count)});
      const int64_t parts = span.logits == LogitsOf::kAll ? span.count : 1;
      const int64_t count = span.count / parts;
      const bool is_wanted = span.logits != LogitsOf::kNone;
      for (int64_t i = 0; i < parts; ++i) {
        read(*span.cache, span.cache->length() + span.in_flight + i,
             {span.tokens + i, static_cast<size_t>(count)}, is_wanted ? logits : nullptr);
        if (is_wanted) logits += vocab();
      }
    }
    count_rows(static_cast<int64_t>(spans.size()), tokens);
    ++forwards;
  }

  // Writes the rows of `tokens`, whose first has this index, and the logits after the last one,
  // [vocab], if `logits` is not null.
  virtual void read(const SequenceCache& cache, int64_t index, std::span<const int32_t> tokens,
                    float* logits) = 0;

  // Reads the states before a span's first token, and writes those after its last one.
  static void append_to_states(const SequenceCache& cache, int64_t index,
                               std::span<const int32_t> tokens) {
    for (int64_t layer = 0; layer < cache.layers(); ++layer) {
      if (cache.has_pages(layer)) continue;
      const SequenceCache::StateLanes lanes = cache.state(layer, index);
      TokenHash::State state;
      std::memcpy(&state, lanes.read, sizeof(state));
      TokenHash hash;
      if (index > 0) hash.read(cache, index - 1);
      SINKSTREAM_CHECK(state == hash.state_of(layer, index), "the state of layer ", layer,
                       " before token ", index, " is of ", state[1], " other tokens");
      hash.set_state(state);
      for (const int32_t token : tokens) hash.add(token);
      state = hash.state_of(layer, index + std::ssize(tokens));
      std::memcpy(lanes.write, &state, sizeof(state));
    }
  }

  void count_rows(int64_t spans, int64_t tokens) {
    if (tokens > max_tokens_) too_long = true;
    widest = std::max<int64_t>(widest, spans);
  }
  void set_step_runner(std::unique_ptr<StepRunner> runner) { step_runner_ = std::move(runner); }

  int64_t max_tokens_ = 64;
  // With a runner of its own, the first runs when a step is launched, the second when it is
  // awaited.
  std::function<void(int64_t forward)> before_forward;
  std::function<void(int64_t forward)> before_results;
  std::counting_semaphore<1 << 20>* gate = nullptr;  // one permit per forward pass, for its results
  std::atomic<int64_t> forwards{0};
  std::atomic<int64_t> widest{0};  // most sequences in one forward pass
  std::atomic<bool> too_long{false};

 private:
  std::unique_ptr<StepRunner> step_runner_;
};

class FakeModel : public RuleModel {
 public:
  int64_t vocab() const override { return kFakeVocab; }

  void read(const SequenceCache& cache, int64_t index, std::span<const int32_t> tokens,
            float* logits) override {
    TokenHash hash;
    if (index > 0) hash.read(cache, index - 1);
    bool is_poisoned = false;
    for (const int32_t token : tokens) {
      hash.add(token);
      hash.write(cache, index++);
      is_poisoned |= token == poison_token;
    }
    if (logits == nullptr) return;
    std::fill(logits, logits + kFakeVocab, 0.0f);
    logits[hash.next_token()] = 20;
    if (is_poisoned) logits[7] = std::numeric_limits<float>::quiet_NaN();
  }

  int32_t poison_token = -1;  // whose next logits contain NaN
};

}  // namespace sinkstream
