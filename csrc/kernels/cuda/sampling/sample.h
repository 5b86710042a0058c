// Draws a token for each row from what logits.h left, as kernels/sample.h defines it: Note [Filters
// are thresholds]; nothing is sorted. How its sums differ: Note [Weights are integers].
//
// The draw of a row is that of common/philox.h for its seed and the index of the token it draws,
// tokens[row].index + 1.
#pragma once

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/cuda/stream.h"

namespace sinkstream::cuda {

// All pointers lead to device memory, `sampled` also to pinned memory; none of them alias. Nothing
// is written for idle rows.
struct SampleArgs {
  Partials logits;                      // as logits.h had them
  int64_t rows = 0;                     // likewise
  int64_t vocab = 0;                    // likewise
  const TokenRow* tokens = nullptr;     // likewise
  const SamplingRow* params = nullptr;  // likewise
  PenaltyTables penalties;              // the token is appended to its row's table
  std::byte* scratch = nullptr;         // what logits.h left, which this changes
  int32_t* ids = nullptr;               // [seats], for the next step's embedding: at its row's
                                        // seat the token, or 0 where there is none, for a step
                                        // in vain reads it, too
  SampledRow* sampled = nullptr;        // [rows]
  float* thresholds = nullptr;  // [rows], set so that the logits from there up are what was kept,
                                // +infinity if nothing was; or null
};

Status sample(const SampleArgs& args, Stream stream);

}  // namespace sinkstream::cuda
