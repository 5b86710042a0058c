// Reads one number of a tiled matrix.
#pragma once

#include "kernels/cuda/linear/weights.h"
#include "kernels/cuda/portable.h"

namespace sinkstream::cuda {

template <typename T>
__device__ inline T number_at(const std::byte* address) {
  return *reinterpret_cast<const T*>(address);
}

// `row` in [0, matrix.rows), `col` in [0, matrix.cols). Rounded once, to float32.
__device__ inline float weight_at(const TiledMatrix& matrix, int64_t row, int64_t col) {
  const std::byte* tile = matrix.tile(row / kTileRows, col / kTileCols);
  const int r = int(row % kTileRows), c = int(col % kTileCols);
  const TileOffset at = offset_in_tile(matrix.type, r, c);
  const std::byte* number = tile + at.byte;
  switch (matrix.type) {
    case WeightType::kFloat32: return number_at<float>(number);
    case WeightType::kFloat16: return to_float(number_at<f16>(number));
    case WeightType::kBFloat16: return to_float(number_at<bf16>(number));
    default: break;
  }
  const std::byte* scales = tile + scale_in_tile(matrix.type, r, c);
  const float scale = to_float(number_at<f16>(scales));
  if (matrix.type == WeightType::kInt8) return scale * float(number_at<int8_t>(number));
  const int code = (number_at<uint8_t>(number) >> at.shift) & 15;
  if (matrix.type == WeightType::kInt4) return scale * float(code - 8);
  return fmaf(scale, float(code), to_float(number_at<f16>(scales + 4)));
}

}  // namespace sinkstream::cuda
