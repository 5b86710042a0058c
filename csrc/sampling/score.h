// The log-probability of a token, and the most probable ones, from a model's logits: before bias,
// penalties, temperature and filters.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace sinkstream {

struct TokenLogprob {
  int32_t id;
  float logprob;
};

struct ScoredToken {
  int32_t token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;  // the most probable, best first, lowest id first among equals
};

// The `count` most probable tokens.
std::vector<TokenLogprob> most_probable(const float* logits, int64_t vocab, int64_t count,
                                        double log_sum_exp);

// Throws NonFiniteLogits, which names the first such logit; `index` is that of the token that the
// logits predict.
[[noreturn]] void refuse_non_finite(const float* logits, int64_t vocab, int64_t index);

// Scores `token`, which stands at `index` of the stream, by the logits [vocab] before it. Throws
// NonFiniteLogits.
ScoredToken score_token(const float* logits, int64_t vocab, int32_t token, int64_t index,
                        int64_t top_count, const Kernels& kernels, const Launch& launch);

}  // namespace sinkstream
