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
  constexpr int kAtOnce = 3;  // whose loads are issued together; most maps have at most four splits
  for (int first = 1; first < partials.splits; first += kAtOnce) {
    float4 more[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < partials.splits) {
        more[i] = *reinterpret_cast<const float4*>(at + (first + i) * split);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= partials.splits) break;
      sum.x += more[i].x;
      sum.y += more[i].y;
      sum.z += more[i].z;
      sum.w += more[i].w;
    }
  }
  return sum;
}

}  // namespace sinkstream::cuda
