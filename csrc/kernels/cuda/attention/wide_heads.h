// Attention for heads of more than 256 numbers, with the sums of tile.cuh: the same bits in decode
// and in prefill.
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace sinkstream::cuda {

// Numbers of a row that are in shared memory together.
constexpr int kChunk = 256;

// In spans of AttentionArgs::span_rows rows.
Status attend_wide_heads(const AttentionArgs& args, Stream stream);

}  // namespace sinkstream::cuda
