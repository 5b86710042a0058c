// Turns a model's logits into those that are sampled from: logit bias, then repetition penalty,
// then presence and frequency penalties, then temperature, as transformers orders those it has.
// What would leave float's range stops at its ends: only a bias of −infinity forbids a token.
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

struct TokenBias {
  int32_t id;
  float bias;  // finite, or −infinity to forbid the token
};

// How often a token stands among those that penalties look at.
struct TokenCount {
  int32_t id;
  int32_t count;  // at least 1
};

struct LogitsArgs {
  const float* input = nullptr;     // [vocab], the model's own
  float* out = nullptr;             // [vocab]; may be `input`; null if not wanted
  int64_t vocab = 0;                // at least 1
  const TokenBias* bias = nullptr;  // [bias_count], ids all different
  int64_t bias_count = 0;
  const TokenCount* counts = nullptr;  // [count_count], ids all different
  int64_t count_count = 0;
  float repetition_penalty = 1;   // above 0; divides what is positive, multiplies what is negative
  float presence_penalty = 0;     // is subtracted once; 0 changes nothing
  float frequency_penalty = 0;    // is subtracted for each occurrence; 0 changes nothing
  float temperature = 1;          // above 0; divides; 1 changes nothing
  bool* is_finite = nullptr;      // set to whether every input is finite; if not, that is all that
                                  // the call says: `out` and `log_sum_exp` hold anything
  double* log_sum_exp = nullptr;  // set to log Σ exp(input), or null if not wanted
};

using LogitsOp = void(const LogitsArgs&, const Launch&);

}  // namespace sinkstream
