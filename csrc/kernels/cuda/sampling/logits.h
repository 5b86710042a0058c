// kernels/logits.h for the rows of a step: adds up the splits of the vocabulary's linear map, looks
// whether they are finite, and leaves in `scratch` the logits that sample.h draws from. The order
// of bias, penalties and temperature, and what they do at the ends of float's range, is that of
// kernels/logits.h, bit for bit.
#pragma once

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/cuda/stream.h"

namespace sinkstream::cuda {

// All pointers lead to device memory; none of them alias.
struct LogitsArgs {
  Partials logits;                      // [splits][rows][vocab], the model's own
  int64_t rows = 0;                     // at least 1
  int64_t vocab = 0;                    // [1, kMostVocab]
  const TokenRow* tokens = nullptr;     // [rows]; a row whose `sequence` is −1 is idle
  const SamplingRow* params = nullptr;  // [rows]
  const TokenBias* bias = nullptr;      // those of all rows; in a row all ids are different, and in
                                        // [0, vocab); −infinity forbids a token
  PenaltyTables penalties;              // looked at, not changed
  std::byte* scratch = nullptr;  // sampling_scratch_bytes(vocab, rows), 16-byte aligned; an idle
                                 // row's is left alone
};

Status logits(const LogitsArgs& args, Stream stream);

}  // namespace sinkstream::cuda
