// What the engine needs of a model that draws its tokens where its logits are: a step is given to
// it before the tokens of the step before are known, so that it never waits for the host.
// Two implementations: CudaDecoder, and the scripted FakeSampler of the tests.
//
// Note: [One step ahead]
// At most two steps are under way. The host launches step n + 1, in which a decoding sequence goes
// on from the token that step n draws, and only then reads that token. Where it ends the sequence,
// the look-ahead token of step n + 1 was computed in vain: it has overwritten no live key, because
// the ring has a block more than is live, and it is never counted in its cache's length. Prompts
// are never computed in vain: whoever wants to end a sequence waits for the steps under way first.
#pragma once

#include <cstdint>
#include <span>

#include "cache/sequence_cache.h"
#include "sampling/params.h"

namespace sinkstream {

// Consecutive tokens of one sequence in a step.
struct SampleSpan {
  enum class Wants : uint8_t {
    kNothing,
    kToken,   // one is drawn behind the last of these
    kLogits,  // of the last one: the host draws
  };

  SequenceCache* cache = nullptr;
  int64_t in_flight = 0;            // tokens of its sequence under way: these get the indices from
                                    // cache->length() + in_flight on
  const int32_t* tokens = nullptr;  // [count], or null: one token, the last that `seat` has drawn
  int64_t count = 0;                // at least 1
  int64_t seat = 0;                 // its own in [0, seats()) from begin_sampling on
  Wants wants = Wants::kNothing;
};

struct SampledToken {
  int32_t token = 0;      // below 0: its bias forbids every token
  float logprob = 0;      // the model's own, before bias, penalties, temperature and filters
  bool is_finite = true;  // false: some logit was not, and there is no token
};

// Of one step, in the order of its spans.
struct SampledStep {
  std::span<const SampledToken> tokens;  // of spans that want one
  const float* logits = nullptr;         // [spans that want them, vocab], on the host, until the
                                         // next launch
};

class DeviceSampler {
 public:
  virtual ~DeviceSampler() = default;

  // Sequences that can draw at the same time.
  virtual int64_t seats() const = 0;

  // From now on `seat` draws as `params` say, for a sequence that keeps so many sinks and window
  // tokens. Penalties look at `seen`, tokens that are in its cache already, in order; then at what
  // the spans of the seat bring and what it draws. Takes effect behind the steps under way.
  virtual void begin_sampling(int64_t seat, const SamplingParams& params, const Window& window,
                              std::span<const int32_t> seen) = 0;

  // Starts a step, and returns while it is under way; at most two are. Does not change the length
  // of any cache: the caller advances it by what it has seen come back. A span's result does not
  // depend on the other spans. The spans and their tokens are read before it returns. Throws
  // DeviceError; then nothing can go on.
  virtual void launch(std::span<const SampleSpan> spans) = 0;

  // Waits for the oldest step under way. What it gives stays until the second launch after it.
  virtual SampledStep await() = 0;
};

}  // namespace sinkstream
