#include "kernels/cuda/norm.h"

#include "common/divide_up.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/sum_splits.cuh"
#include "kernels/cuda/word_ops.cuh"

namespace sinkstream::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostWarps = kMostThreads / kWarpSize;

__device__ inline float sum_of_warp(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kWarp, x, distance);
  return x;
}

// Every thread adds all warps' sums itself: one barrier, one order. Each call needs its own `sums`,
// [kMostWarps] in shared memory.
__device__ inline float sum_of_block(float x, float* sums) {
  x = sum_of_warp(x);
  if (threadIdx.x % kWarpSize == 0) sums[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  x = 0;
  for (int warp = 0; warp < int(blockDim.x) / kWarpSize; ++warp) x += sums[warp];
  return x;
}

__device__ inline float4 minus(const float4& x, float y) {
  return make_float4(x.x - y, x.y - y, x.z - y, x.w - y);
}

__device__ inline float add_squares(const float4& x, float sum) {
  return fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, sum))));
}

// What a row is normalized with: factor · (x − mean).
struct RowStatistics {
  float mean;
  float factor;
};

// Of a row in shared memory, `kept` [dim / 4]; a thread reads only what it wrote there. `sums`:
// [2][kMostWarps].
__device__ inline RowStatistics statistics_of(const float4* kept, int fours, NormKind kind,
                                              float eps, float (*sums)[kMostWarps]) {
  const int threads = int(blockDim.x), thread = int(threadIdx.x);
  const auto dim = float(4 * fours);
  RowStatistics row = {0, 0};
  if (kind == NormKind::kLayer) {
    float sum = 0;
    for (int i = thread; i < fours; i += threads) {
      sum += (kept[i].x + kept[i].y) + (kept[i].z + kept[i].w);
    }
    row.mean = sum_of_block(sum, sums[0]) / dim;
  }
  float squares = 0;
  for (int i = thread; i < fours; i += threads) {
    squares = add_squares(kind == NormKind::kLayer ? minus(kept[i], row.mean) : kept[i], squares);
  }
  row.factor = 1.0f / sqrtf(sum_of_block(squares, sums[1]) / dim + eps);
  return row;
}

__device__ inline float4 normalized(const float4& x, const RowStatistics& row, NormKind kind,
                                    const float4& weight, const NormWeights& norm, int i) {
  const float4 y = kind == NormKind::kLayer ? minus(x, row.mean) : x;
  float4 z = make_float4(y.x * row.factor * weight.x, y.y * row.factor * weight.y,
                         y.z * row.factor * weight.z, y.w * row.factor * weight.w);
  if (norm.bias != nullptr) {
    const float4 bias = reinterpret_cast<const float4*>(norm.bias)[i];
    z = make_float4(z.x + bias.x, z.y + bias.y, z.z + bias.z, z.w + bias.w);
  }
  return z;
}

__device__ inline float4 weight_at(const NormWeights& norm, int i) {
  return reinterpret_cast<const float4*>(norm.weight)[i];
}

// One block per row. A thread handles the same groups of four columns in all passes, so it reads
// back only its own values from shared memory. The weights of its first group are on their way
// while the row is summed: they come from device memory, the rest from the cache.
__global__ void __launch_bounds__(kMostThreads) norm_kernel(NormArgs args) {
  SHARED(float, post_sums, [2][kMostWarps]);
  SHARED(float, sums, [2][kMostWarps]);
  DYNAMIC_SHARED(float4, kept);  // [dim / 4]
  const int64_t row = blockIdx.x;
  const int fours = int(args.dim / 4), threads = int(blockDim.x), thread = int(threadIdx.x);
  auto* hidden = reinterpret_cast<float4*>(args.hidden + row * args.dim);
  const bool has_norm = args.norms[0].weight != nullptr;
  const float4 first_weights =
      has_norm && thread < fours ? weight_at(args.norms[0], thread) : make_float4(0, 0, 0, 0);
  wait_for_previous();

  const bool has_residual = args.residual.data != nullptr;
  const bool has_post = has_residual && args.post.weight != nullptr;
  RowStatistics post = {0, 0};
  if (has_post) {
    for (int i = thread; i < fours; i += threads) {
      kept[i] = sum_of_splits4(args.residual, row, int64_t{4} * i);
    }
    post = statistics_of(kept, fours, args.post_kind, args.post_eps, post_sums);
  }
  for (int i = thread; i < fours; i += threads) {
    float4 x = hidden[i];
    if (has_residual) {
      const float4 more = has_post ? normalized(kept[i], post, args.post_kind,
                                                weight_at(args.post, i), args.post, i)
                                   : sum_of_splits4(args.residual, row, int64_t{4} * i);
      const float scale = args.residual_scale;
      x = make_float4(x.x + more.x * scale, x.y + more.y * scale, x.z + more.z * scale,
                      x.w + more.w * scale);
      hidden[i] = x;
    }
    kept[i] = x;
  }

  if (args.outs[0] == nullptr) return;
  RowStatistics own = {0, 1};
  if (has_norm) own = statistics_of(kept, fours, args.kind, args.eps, sums);
  for (int o = 0; o < 2; ++o) {
    if (args.outs[o] == nullptr) break;
    for (int i = thread; i < fours; i += threads) {
      float4 y = kept[i];
      if (has_norm) {
        const float4 weight = o == 0 && i == thread ? first_weights : weight_at(args.norms[o], i);
        y = normalized(y, own, args.kind, weight, args.norms[o], i);
      }
      const uint2 words = make_uint2(pack<bf16>(y.x, y.y), pack<bf16>(y.z, y.w));
      static_cast<uint2*>(args.outs[o])[row * fours + i] = words;
      if (args.rest == nullptr || (o == 0 && args.outs[1] != nullptr)) continue;
      const float2 xy = bf16_floats(words.x), zw = bf16_floats(words.y);
      static_cast<uint2*>(args.rest)[row * fours + i] =
          make_uint2(pack<bf16>(y.x - xy.x, y.y - xy.y), pack<bf16>(y.z - zw.x, y.w - zw.y));
    }
  }
}

}  // namespace

Status norm(const NormArgs& args, Stream stream) {
  if (args.rows == 0) return kSuccess;
  // One group of four per thread, up to the block's limit.
  const int64_t threads = divide_up(args.dim / 4, kWarpSize) * kWarpSize;
  return launch(norm_kernel, dim3(unsigned(args.rows)),
                dim3(unsigned(threads < kMostThreads ? threads : kMostThreads)),
                size_t(args.dim) * sizeof(float), stream, args);
}

}  // namespace sinkstream::cuda
