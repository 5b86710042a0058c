// Samples the tokens of one sequence from its logits. Knows nothing about text or models.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "kernels/table.h"
#include "sampling/params.h"
#include "sampling/penalty_ring.h"
#include "sampling/score.h"
#include "sampling/token_mask.h"

namespace sinkstream {

struct Sampled {
  int32_t token = 0;
  // Log-probabilities are the model's own: of the logits before bias, penalties, temperature and
  // filters.
  float logprob = 0;
  std::vector<TokenLogprob> top;  // the `logprobs` most probable, best first, lowest id
                                  // first among equals
};

// Working memory for one call at a time; the samplers of all sequences share it.
struct SamplerScratch {
  explicit SamplerScratch(int64_t vocab);

  int64_t vocab;
  Buffer logits;  // float [vocab]
  Buffer sample;  // sample_scratch_bytes(vocab)

  int64_t bytes() const { return logits.bytes() + sample.bytes(); }
};

class Sampler {
 public:
  // `params` has passed validate(). The cache keeps the first `sinks` and the last `window`
  // tokens; `max_length` bounds the tokens of the sequence (INT64_MAX: no bound).
  Sampler(SamplingParams params, int64_t sinks, int64_t window, int64_t max_length);

  const SamplingParams& params() const { return params_; }

  // Reports the tokens that enter the cache, prompt included, in order. Penalties depend only on
  // these.
  void append(std::span<const int32_t> tokens);

  // Samples the token at `index` of the stream from `logits` [scratch.vocab], without appending it.
  // A mask that is not empty forbids the tokens that it does not allow. Allocates nothing unless
  // `logprobs` is above 0. Throws NonFiniteLogits, and InvalidArgument if `logit_bias` and the mask
  // forbid every token; both name `index`.
  Sampled sample(const float* logits, int64_t index, const Kernels& kernels, const Launch& launch,
                 SamplerScratch& scratch, TokenMask mask = {}) const;

 private:
  bool changes_logits() const;

  SamplingParams params_;
  std::optional<PenaltyRing> ring_;  // only if a penalty is not neutral
};

}  // namespace sinkstream
