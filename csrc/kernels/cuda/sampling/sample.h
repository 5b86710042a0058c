// Samples a token for each row from the output of logits.h, as kernels/sample.h defines it: Note
// [Filters are thresholds]; nothing is sorted. How its sums differ: Note [Weights are integers].
//
// A row's random number is that of common/philox.h for its seed and the index of the sampled token,
// tokens[row].index + 1.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"
#include "kernels/cuda/sampling/sampling.h"

namespace sinkstream::cuda {

// All pointers are to device memory; `sampled` may be pinned memory. None alias. Nothing is written
// for idle rows.
struct SampleArgs {
  Partials logits;                      // as for logits.h
  LogitBend bend = {};                  // likewise
  int64_t rows = 0;                     // likewise
  int64_t vocab = 0;                    // likewise
  const TokenRow* tokens = nullptr;     // likewise
  const SamplingRow* params = nullptr;  // likewise
  PenaltyTables penalties;              // the token is appended to its row's table
  std::byte* scratch = nullptr;         // output of logits.h; changed
  int32_t* ids = nullptr;  // [seats], for the next step's embedding: the token of a row's seat, or
                           // 0 if there is none: a discarded step reads it, too
  SampledRow* sampled = nullptr;  // [rows], and the row before them if the first one has a draft
  // [rows]: logits from this value up were kept, +infinity if none were; or null.
  float* thresholds = nullptr;
  int32_t wave = 0;  // rows of other waves count as idle; the ones before it have been sampled
};

Status sample(const SampleArgs& args, Stream stream);

}  // namespace sinkstream::cuda
