// Samples one token: top-k, then top-p, then min-p, then a draw from the rest, without sorting the
// vocabulary.
//
// Note: [Filters are thresholds]
// Each filter keeps the logits at or above a threshold, so equal logits stay or go together. The
// three in sequence keep exactly { i : logits[i] >= the largest of their thresholds }:
//   top-k  the k-th largest logit;
//   top-p  the largest value such that the logits at or above it have at least p of the
//          probability that top-k left (transformers keeps the same, but cuts among equal logits);
//   min-p  the smallest value with at least min_p times the largest probability.
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

struct SampleArgs {
  const float* logits = nullptr;  // [vocab]; −infinity forbids a token; no NaN, no +infinity
  int64_t vocab = 0;              // at least 1
  bool greedy = false;  // the largest logit, the lowest id among equals; ignores the filters
  int64_t top_k = 0;    // at least 0; 0 keeps all
  double top_p = 1;     // in (0, 1]; 1 keeps all
  double min_p = 0;     // in [0, 1]; 0 keeps all
  double uniform = 0;   // [0, 1): draws the first kept token, by ascending id, at which the
                        // cumulative probability exceeds it
  std::byte* scratch = nullptr;  // sample_scratch_bytes(vocab), 64-byte aligned
  int32_t* token = nullptr;      // the choice; −1 if every token is forbidden
  float* threshold = nullptr;    // set so that { i : logits[i] >= threshold } was kept; null if
                                 // not wanted
};

constexpr int64_t sample_scratch_bytes(int64_t vocab) { return vocab * 16 + 65536; }

using SampleOp = void(const SampleArgs&, const Launch&);

}  // namespace sinkstream
