// Runs the engine's steps: appends tokens to caches and samples the next ones, or returns the
// logits that the host samples from. Three implementations: HostRunner, CudaDecoder, and the
// scripted FakeRunner of the tests.
//
// Note: [One step ahead]
// A runner that samples on the device where its logits are may have two steps in flight, so that
// the device never waits for the host. The host launches step n + 1, in which a decoding sequence
// continues from the token that step n samples, and only then reads that token. If the token ends
// the sequence, the look-ahead token of step n + 1 is discarded: it has overwritten no live key,
// because the ring has room for it (Window::window_pages), and its cache's length never counts it.
// Prompt tokens are never discarded: to end a sequence, the caller first waits for the steps in
// flight.
//
// Note: [Who moves a length]
// Only the caller. It records a launched span's tokens as in flight, commits those that it keeps
// once the result has arrived, and drops the rest. A runner appends, and leaves lengths alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "cache/sequence_cache.h"
#include "sampling/params.h"

namespace sinkstream {

// Consecutive tokens of one sequence in a step.
struct StepSpan {
  enum class Wants : uint8_t {
    kNothing,
    kToken,      // tokens are sampled after the last of these
    kLogits,     // the last one's logits: the host samples
    kAllLogits,  // the logits of each: the host scores the tokens after them
  };

  SequenceCache* cache = nullptr;
  int64_t in_flight = 0;            // tokens of its sequence; these get the indices from
                                    // cache->length() + in_flight on
  const int32_t* tokens = nullptr;  // [count], or null: one, the last that `seat` sampled
  int64_t count = 0;                // tokens that it appends, at least 1
  int64_t seat = -1;                // in [0, seats()), the sequence's own from begin_sampling on;
                                    // below 0: none, and it wants no token
  Wants wants = Wants::kNothing;
  // Of `count`, the last: guesses, which stay only if they are sampled. If `seat` samples, they
  // follow the token that it sampled last, and without `tokens` the runner guesses them itself.
  int64_t drafts = 0;
};

// How many rows of logits a span of `count` tokens returns.
inline int64_t logit_rows(StepSpan::Wants wants, int64_t count) {
  if (wants == StepSpan::Wants::kAllLogits) return count;
  return wants == StepSpan::Wants::kLogits ? 1 : 0;
}

struct SampledToken {
  int32_t token = 0;      // below 0: the bias forbids every token
  float logprob = 0;      // the model's own, before bias, penalties, temperature and filters
  bool is_finite = true;  // false: some logit is not finite, and there is no token
};

// The result of one step, in the order of its spans.
struct StepResult {
  // Of each span with kToken its run: the token after the span's own, and one more after each draft
  // that was sampled in its place, up to the first that was not. So a run has from 1 to 1 + drafts
  // tokens, and all but the last are in the cache.
  std::span<const SampledToken> tokens;  // run by run
  std::span<const int32_t> runs;         // the length of each run
  const float* logits = nullptr;         // [logit rows, vocab], on the host, until the next launch
};

// The maximum number of tokens of a step whose spans want kAllLogits: enough to share a pass over
// the weights, but no more than this many bytes of logits.
inline int64_t most_scored_rows(int64_t vocab) {
  constexpr int64_t kMostRows = 32, kMostBytes = int64_t{8} << 20;
  return std::clamp<int64_t>(kMostBytes / (vocab * int64_t{sizeof(float)}), 1, kMostRows);
}

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // How many steps may be in flight: 1, or 2 if a step may be launched before the previous one's
  // tokens are known.
  virtual int64_t most_in_flight() const = 0;
  // How many tokens it drafts itself after the token of a decoding span, to verify them in the same
  // step: at most kLookAhead.
  virtual int64_t drafts() const { return 0; }

  // The number of sequences that can sample at the same time; 0: the host samples all tokens.
  virtual int64_t seats() const = 0;
  // From now on `seat` samples with `params`, for a sequence with this window. Penalties count
  // `seen`, the tokens already in its cache, in order, then the tokens of the seat's spans without
  // drafts and those it samples. Takes effect after the steps in flight.
  virtual void begin_sampling(int64_t seat, const SamplingParams& params, const Window& window,
                              std::span<const int32_t> seen) = 0;

  // Starts a step; returns while it is in flight, or when it has ended. At most one step in flight
  // has spans that return logits, and at most most_scored_rows() of its tokens are of spans with
  // kAllLogits or drafts. A span's result does not depend on the other spans. The spans and their
  // tokens are read before it returns. If it throws, the caches' contents are undefined and the
  // model is unusable.
  virtual void launch(std::span<const StepSpan> spans) = 0;

  // Waits for the oldest step in flight. Its tokens are valid until the second launch after it.
  virtual StepResult await() = 0;
};

}  // namespace sinkstream
