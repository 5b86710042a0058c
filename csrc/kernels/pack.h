// Packs rows of a checkpoint into panels. Quantized blocks keep their codes, scales and minima bit
// for bit. Runs once, at load; plain code on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/packed_matrix.h"

namespace sinkstream {

// The number formats of a file. The quantized ones are GGUF's blocks of 32 along a row: a float16
// scale (for kQ4_1 also a float16 minimum), then the codes. In 4-bit blocks the low half-bytes hold
// columns 0 .. 15, the high ones columns 16 .. 31.
enum class Storage : uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1 };

// The panel type that represents a storage's numbers exactly.
WeightType weight_type_of(Storage storage);

// Bytes of one row in the file; `cols` must be a multiple of 32 for the quantized formats.
int64_t row_bytes_of(Storage storage, int64_t cols);

// Packs rows [row, row + count) of a matrix whose panels start at `panels`.
// `source` holds `count` rows in the file's format, at any alignment. The panels must be zero
// before the first call: rows past the end stay zero.
void pack_rows(Storage storage, const std::byte* source, int64_t row, int64_t count, int64_t cols,
               std::byte* panels);

// Writes a vector of `count` numbers (F32, F16 or BF16) as float32.
void unpack_vector(Storage storage, const std::byte* source, int64_t count, float* out);

}  // namespace sinkstream
