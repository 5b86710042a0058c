// Sums the partials of a linear map.
#pragma once

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/portable.h"

namespace sinkstream::cuda {

// Element `column` of a row; splits are added in ascending order.
__device__ inline float sum_of_splits(const Partials& partials, int64_t row, int64_t column) {
  const float* at = partials.data + row * partials.stride + column;
  const int64_t split = partials.rows * partials.stride;
  float sum = *at;
  for (int s = 1; s < partials.splits; ++s) sum += at[s * split];
  return sum;
}

// Elements column to column + 3, which are 16-byte aligned.
__device__ inline float4 sum_of_splits4(const Partials& partials, int64_t row, int64_t column) {
  const float* at = partials.data + row * partials.stride + column;
  const int64_t split = partials.rows * partials.stride;
  float4 sum = *reinterpret_cast<const float4*>(at);
  for (int s = 1; s < partials.splits; ++s) {
    const float4 more = *reinterpret_cast<const float4*>(at + s * split);
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
  }
  return sum;
}

}  // namespace sinkstream::cuda
