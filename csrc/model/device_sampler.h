// A model that samples on the device where its logits are. A step is launched before the previous
// step's tokens are known, so the device never waits for the host. Two implementations:
// CudaDecoder, and the scripted FakeSampler of the tests.
//
// Note: [One step ahead]
// At most two steps are in flight. The host launches step n + 1, in which a decoding sequence
// continues from the token that step n samples, and only then reads that token. If the token ends
// the sequence, the look-ahead token of step n + 1 is discarded: it has overwritten no live key,
// because the ring has one more block than is live, and its cache's length never counts it. Prompt
// tokens are never discarded: to end a sequence, the caller first waits for the steps in flight.
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
    kToken,   // a token is sampled after the last of these
    kLogits,  // the last one's logits: the host samples
  };

  SequenceCache* cache = nullptr;
  int64_t in_flight = 0;            // tokens of its sequence; these get the indices from
                                    // cache->length() + in_flight on
  const int32_t* tokens = nullptr;  // [count], or null: one token, the last that `seat` sampled
  int64_t count = 0;                // at least 1
  int64_t seat = 0;                 // in [0, seats()), the sequence's own from begin_sampling on
  Wants wants = Wants::kNothing;
};

struct SampledToken {
  int32_t token = 0;      // below 0: the bias forbids every token
  float logprob = 0;      // the model's own, before bias, penalties, temperature and filters
  bool is_finite = true;  // false: some logit is not finite, and there is no token
};

// The result of one step, in the order of its spans.
struct SampledStep {
  std::span<const SampledToken> tokens;  // of spans with kToken
  const float* logits = nullptr;  // [spans with kLogits, vocab], on the host, until the next launch
};

class DeviceSampler {
 public:
  virtual ~DeviceSampler() = default;

  // The number of sequences that can sample at the same time.
  virtual int64_t seats() const = 0;

  // From now on `seat` samples with `params`, for a sequence with this window. Penalties count
  // `seen`, the tokens already in its cache, in order, then the tokens of the seat's spans and
  // those it samples. Takes effect after the steps in flight.
  virtual void begin_sampling(int64_t seat, const SamplingParams& params, const Window& window,
                              std::span<const int32_t> seen) = 0;

  // Starts a step and returns while it is in flight; at most two are, and at most one that has a
  // span with kLogits. Does not change the length of any cache: the caller advances it once the
  // result has arrived. A span's result does not depend on the other spans. The spans and their
  // tokens are read before it returns. Throws DeviceError, after which the model is unusable.
  virtual void launch(std::span<const SampleSpan> spans) = 0;

  // Waits for the oldest step in flight. The result is valid until the second launch after it.
  virtual SampledStep await() = 0;
};

}  // namespace sinkstream
