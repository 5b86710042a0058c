// One weight of a packed matrix, exactly. Slow; the definition of Note: [Panels].
#pragma once

#include <cstring>

#include "common/dtype.h"
#include "kernels/packed_matrix.h"

namespace sinkstream {

template <typename T>
T read_at(const std::byte* base, int64_t element) {
  T value;
  std::memcpy(&value, base + element * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// `row` in [0, matrix.rows), `col` in [0, matrix.cols).
inline double weight_at(const PackedMatrix& matrix, int64_t row, int64_t col) {
  const std::byte* panel = matrix.panel(row / kPanelRows);
  const int64_t r = row % kPanelRows;
  switch (matrix.type) {
    case WeightType::kFloat32: return read_at<float>(panel, col * kPanelRows + r);
    case WeightType::kFloat16: return to_float(read_at<f16>(panel, col * kPanelRows + r));
    case WeightType::kBFloat16:
      return to_float(read_at<bf16>(panel, (col / 2 * kPanelRows + r) * 2 + col % 2));
    default: break;
  }
  const std::byte* block = panel + col / kGroup * block_bytes(matrix.type);
  const int64_t c = col % kGroup;
  if (matrix.type == WeightType::kInt8) {
    const double scale = to_float(read_at<f16>(block + kPanelRows * kGroup, r));
    return scale * read_at<int8_t>(block, (c / 4 * kPanelRows + r) * 4 + c % 4);
  }
  const std::byte* scales = block + kPanelRows * kGroup / 2;
  const double scale = to_float(read_at<f16>(scales, r));
  const int64_t nibble = c % 8 / 2 + c % 2 * 4;
  const int code = (read_at<uint32_t>(block, c / 8 * kPanelRows + r) >> (4 * nibble)) & 15;
  if (matrix.type == WeightType::kInt4) return scale * (code - 8);
  return scale * code + to_float(read_at<f16>(scales + kPanelRows * 2, r));
}

}  // namespace sinkstream
