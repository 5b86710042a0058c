// Packs rows of a checkpoint into panels. Quantized blocks keep their codes, scales and minima bit
// for bit. Runs once, at load; plain code on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/packed_matrix.h"

namespace sinkstream {

// The number formats of a file. The quantized ones are blocks along a row: GGUF's, and those that
// pack_split.h makes of a Hugging Face folder's tensors.
enum class Storage : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kInt4,
  kInt8,
  kFp8,
};

struct StorageRow {
  Storage storage;
  std::string_view name;  // GGUF's, if it has this format
  int64_t block;          // numbers in a block
  int64_t bytes;          // of a block
  WeightType type;        // of the panels that represent its numbers exactly
  bool is_split = false;  // in files, codes and scales are tensors of their own
};

// In the order of Storage.
inline constexpr StorageRow kStorageRows[] = {
    {Storage::kF32, "F32", 1, 4, WeightType::kFloat32},
    {Storage::kF16, "F16", 1, 2, WeightType::kFloat16},
    {Storage::kBF16, "BF16", 1, 2, WeightType::kBFloat16},
    {Storage::kQ8_0, "Q8_0", 32, 34, WeightType::kInt8},
    {Storage::kQ4_0, "Q4_0", 32, 18, WeightType::kInt4},
    {Storage::kQ4_1, "Q4_1", 32, 20, WeightType::kInt4Minimum},
    {Storage::kQ5_0, "Q5_0", 32, 22, WeightType::kInt5},
    {Storage::kQ5_1, "Q5_1", 32, 24, WeightType::kInt5Minimum},
    {Storage::kQ2_K, "Q2_K", 256, 84, WeightType::kQ2K},
    {Storage::kQ3_K, "Q3_K", 256, 110, WeightType::kQ3K},
    {Storage::kQ4_K, "Q4_K", 256, 144, WeightType::kQ4K},
    {Storage::kQ5_K, "Q5_K", 256, 176, WeightType::kQ5K},
    {Storage::kQ6_K, "Q6_K", 256, 210, WeightType::kQ6K},
    {Storage::kIQ4_NL, "IQ4_NL", 32, 18, WeightType::kIq4Nl},
    {Storage::kIQ4_XS, "IQ4_XS", 256, 136, WeightType::kIq4Xs},
    {Storage::kMXFP4, "MXFP4", 32, 17, WeightType::kMxfp4},
    {Storage::kInt4, "INT4", 32, 20, WeightType::kInt4Zero, true},
    {Storage::kInt8, "INT8", 32, 36, WeightType::kInt8Zero, true},
    {Storage::kFp8, "FP8", 32, 36, WeightType::kE4m3, true},
};

constexpr const StorageRow& row_of(Storage storage) {
  return kStorageRows[static_cast<size_t>(storage)];
}

constexpr WeightType weight_type_of(Storage storage) { return row_of(storage).type; }

// Bytes of one row in the file; `cols` must be a multiple of the block.
constexpr int64_t row_bytes_of(Storage storage, int64_t cols) {
  return cols / row_of(storage).block * row_of(storage).bytes;
}

// Packs rows [row, row + count) of a matrix whose panels start at `panels`.
// `source` holds `count` rows in the file's format, at any alignment. The panels must be zero
// before the first call: rows past the end stay zero. Open blocks have kUnit columns. Returns
// whether all scales are finite, and all numbers of FP8.
bool pack_rows(Storage storage, const std::byte* source, int64_t row, int64_t count, int64_t cols,
               std::byte* panels);

// Columns [col, col + width) of rows [row, row + count) of a matrix with `cols` columns.
struct MatrixPart {
  int64_t row = 0, count = 0;
  int64_t col = 0, width = 0;  // whole blocks; `col` is even
};

// The same for a part of the matrix: `source` holds only its columns.
bool pack_part(Storage storage, const std::byte* source, const MatrixPart& part, int64_t cols,
               std::byte* panels);

// Writes a vector of `count` numbers (F32, F16 or BF16) as float32.
void unpack_vector(Storage storage, const std::byte* source, int64_t count, float* out);

}  // namespace sinkstream
