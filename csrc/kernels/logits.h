// Turns a model's logits into those that are sampled: logit bias, repetition penalty, presence and
// frequency penalties, temperature, in this order (the order of transformers, where it has them).
// Results are clamped to float's range: only a bias of −infinity forbids a token.
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

struct TokenBias {
  int32_t id;
  float bias;  // finite, or −infinity to forbid the token
};

// How often a token occurs among those that penalties consider.
struct TokenCount {
  int32_t id;
  int32_t count;  // at least 1
};

struct LogitsArgs {
  const float* input = nullptr;     // [vocab], from the model
  float* out = nullptr;             // [vocab]; may be `input`; null if not wanted
  int64_t vocab = 0;                // at least 1
  const TokenBias* bias = nullptr;  // [bias_count], ids all different
  int64_t bias_count = 0;
  const TokenCount* counts = nullptr;  // [count_count], ids all different
  int64_t count_count = 0;
  float repetition_penalty = 1;   // above 0; divides positive logits, multiplies negative ones
  float presence_penalty = 0;     // subtracted once; 0 changes nothing
  float frequency_penalty = 0;    // subtracted per occurrence; 0 changes nothing
  float temperature = 1;          // above 0; divides; 1 changes nothing
  bool* is_finite = nullptr;      // set to whether every input is finite; if not, `out` and
                                  // `log_sum_exp` are undefined
  double* log_sum_exp = nullptr;  // set to log Σ exp(input), or null if not wanted
};

using LogitsOp = void(const LogitsArgs&, const Launch&);

}  // namespace sinkstream
