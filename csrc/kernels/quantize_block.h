// Rounds one block of numbers; quantize.h is for rows.
#pragma once

#include <cstring>

#include "common/dtype.h"
#include "kernels/file_blocks.h"
#include "kernels/pack.h"

namespace sinkstream {

// Writes a float16 of the block's head; returns what the value then is.
inline float put_half(float value, int index, FileBlock* block) {
  const f16 half = to_f16(value);
  std::memcpy(block->halves + 2 * index, &half.bits, 2);
  return to_float(half);
}

// `x`: 256 numbers below 1e9. Q2_K, Q3_K, Q4_K, Q5_K or Q6_K.
void round_block_k(Storage to, const float* x, FileBlock* block);

// `x`: 256 numbers below 1e9.
void round_block_iq4_xs(const float* x, FileBlock* block);

// `x`: 32 numbers below 1e9.
void round_block_iq4_nl(const float* x, FileBlock* block);

// `x`: 32 numbers.
void round_block_mxfp4(const float* x, FileBlock* block);

}  // namespace sinkstream
