// Rounds rows of 16- or 32-bit numbers to quantized blocks, as ggml's reference quantizer does, bit
// for bit. Runs once, at load; plain code on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/pack.h"

namespace sinkstream {

// Whether rows can be rounded to this storage: all blocks of GGUF that pack.h has.
bool can_quantize_to(Storage storage);

// Rounds a row of `cols` numbers, stored as F32, F16 or BF16, to blocks of `to`, one that
// `can_quantize_to` allows; `cols` is a multiple of its block. Each block has the scales that its
// own numbers need, and each number goes to the nearest code. Returns false, and blocks that must
// not be used, if a number is NaN or infinite, or so large that a scale would be.
bool quantize_row(Storage from, const std::byte* source, int64_t cols, Storage to, std::byte* out);

}  // namespace sinkstream
