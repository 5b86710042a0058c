// kernels/logits.h for the rows of a step: sums the splits of the output map, scales and caps the
// sums, checks that all logits are finite, and writes the logits that sample.h samples from to
// `scratch`. Bias, penalties and temperature are applied in the order of kernels/logits.h, with the
// same bits, even at the ends of float's range.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"
#include "kernels/cuda/sampling/sampling.h"

namespace sinkstream::cuda {

// All pointers are to device memory; none alias.
struct LogitsArgs {
  Partials logits;                      // [splits][rows][vocab], of the model's output map
  LogitBend bend = {};                  // turns their sums into the model's own logits
  int64_t rows = 0;                     // at least 1
  int64_t vocab = 0;                    // [1, kMostVocab]
  const TokenRow* tokens = nullptr;     // [rows]; a row whose `sequence` is −1 is idle
  const SamplingRow* params = nullptr;  // [rows]
  const TokenBias* bias = nullptr;      // of all rows; a row's ids are distinct and in [0, vocab);
                                        // −infinity forbids a token
  PenaltyTables penalties;              // read only
  // sampling_scratch_bytes(vocab, rows), 16-byte aligned; idle rows are not written.
  std::byte* scratch = nullptr;
  int32_t wave = 0;  // rows of other waves count as idle
};

Status logits(const LogitsArgs& args, Stream stream);

}  // namespace sinkstream::cuda
