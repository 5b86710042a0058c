#include "kernels/cuda/rms_norm.h"

#include "common/divide_up.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/sum_splits.cuh"

namespace sinkstream::cuda {
namespace {

constexpr int kMostThreads = 1024;

__device__ inline float sum_of_warp(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kWarp, x, distance);
  return x;
}

// One block per row. A thread handles the same groups of four columns in both passes, so it reads
// back only its own values from shared memory. The weights of its first group are on their way
// while the row is summed: they come from device memory, the rest from the cache.
__global__ void __launch_bounds__(kMostThreads) rms_norm_kernel(RmsNormArgs args) {
  SHARED(float, warp_sums, [kMostThreads / kWarpSize]);
  DYNAMIC_SHARED(float4, kept);  // [dim / 4]
  const int64_t row = blockIdx.x;
  const int fours = int(args.dim / 4), threads = int(blockDim.x), thread = int(threadIdx.x);
  auto* hidden = reinterpret_cast<float4*>(args.hidden + row * args.dim);
  const auto* weights = reinterpret_cast<const float4*>(args.weight);
  const float4 first_weights = thread < fours ? weights[thread] : make_float4(0, 0, 0, 0);
  wait_for_previous();

  float squares = 0;
  for (int i = thread; i < fours; i += threads) {
    float4 x = hidden[i];
    if (args.residual.data != nullptr) {
      const float4 more = sum_of_splits4(args.residual, row, int64_t{4} * i);
      x = make_float4(x.x + more.x, x.y + more.y, x.z + more.z, x.w + more.w);
      hidden[i] = x;
    }
    squares = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, squares))));
    kept[i] = x;
  }

  // Every thread adds all warps' sums itself: one barrier, one order.
  squares = sum_of_warp(squares);
  if (thread % kWarpSize == 0) warp_sums[thread / kWarpSize] = squares;
  __syncthreads();
  squares = 0;
  for (int warp = 0; warp < threads / kWarpSize; ++warp) squares += warp_sums[warp];
  const float factor = 1.0f / sqrtf(squares / float(args.dim) + args.eps);

  for (int i = thread; i < fours; i += threads) {
    const float4 x = kept[i], weight = i == thread ? first_weights : weights[i];
    const float4 y = make_float4(x.x * factor * weight.x, x.y * factor * weight.y,
                                 x.z * factor * weight.z, x.w * factor * weight.w);
    if (args.out != nullptr) {
      static_cast<uint2*>(args.out)[row * fours + i] =
          make_uint2(pack<bf16>(y.x, y.y), pack<bf16>(y.z, y.w));
    }
    if (args.out_float32 != nullptr) {
      reinterpret_cast<float4*>(args.out_float32)[row * fours + i] = y;
    }
  }
}

}  // namespace

Status rms_norm(const RmsNormArgs& args, Stream stream) {
  if (args.rows == 0) return kSuccess;
  // One group of four per thread, up to the block's limit.
  const int64_t threads = divide_up(args.dim / 4, kWarpSize) * kWarpSize;
  return launch(rms_norm_kernel, dim3(unsigned(args.rows)),
                dim3(unsigned(threads < kMostThreads ? threads : kMostThreads)),
                size_t(args.dim) * sizeof(float), stream, args);
}

}  // namespace sinkstream::cuda
