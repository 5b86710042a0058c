// Rounds rows of 16- or 32-bit numbers to quantized blocks, as ggml's reference quantizer does, bit
// for bit. Runs once, at load; plain code on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/pack.h"

namespace sinkstream {

// Whether rows can be rounded to this storage: Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1.
bool can_quantize_to(Storage storage);

// Rounds a row of `cols` numbers, stored as F32, F16 or BF16, to blocks of `to`, one that
// `can_quantize_to` allows; `cols` is a multiple of its block. Each block has the scale that its
// own numbers need, and each number goes to the nearest code. Returns false if a number is
// NaN, infinite or at least 1e30; the blocks must not be used then. Scales may still be infinite.
bool quantize_row(Storage from, const std::byte* source, int64_t cols, Storage to, std::byte* out);

}  // namespace sinkstream
