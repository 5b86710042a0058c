// Rounds one block of numbers; quantize.h is for rows.
#pragma once

#include "kernels/file_blocks.h"
#include "kernels/pack.h"

namespace sinkstream {

// `x`: 256 numbers below 1e9. Q2_K, Q3_K, Q4_K, Q5_K or Q6_K.
void round_block_k(Storage to, const float* x, FileBlock* block);

// `x`: 256 numbers below 1e9.
void round_block_iq4_xs(const float* x, FileBlock* block);

// `x`: 32 numbers below 1e9.
void round_block_iq4_nl(const float* x, FileBlock* block);

// `x`: 32 numbers.
void round_block_mxfp4(const float* x, FileBlock* block);

}  // namespace sinkstream
