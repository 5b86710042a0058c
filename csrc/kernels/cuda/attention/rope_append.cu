#include "kernels/cuda/attention/rope_append.h"

#include <cfloat>

#include "common/divide_up.h"
#include "kernels/cuda/attention/find_page.cuh"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/sum_splits.cuh"

namespace sinkstream::cuda {

namespace {

constexpr int kWarps = 4;  // per block; a warp handles one head of one row
constexpr int kMostHeadDim = 256;

// Heads of a row in the order of its linear map.
enum class Part { kQuery, kKey, kValue };

__device__ inline double warp_sum(double x) {
  for (int lane = kWarpSize / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kWarp, x, lane);
  return x;
}

__device__ inline float warp_max(float x) {
  for (int lane = kWarpSize / 2; lane > 0; lane /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kWarp, x, lane));
  }
  return x;
}

// RMS norm in place, in double like the reference.
__device__ inline void norm(float* head, const float* weight, float eps, int head_dim, int lane) {
  double squares = 0;
  for (int d = lane; d < head_dim; d += kWarpSize) squares += double{head[d]} * head[d];
  const double factor = 1 / sqrt(warp_sum(squares) / head_dim + double{eps});
  for (int d = lane; d < head_dim; d += kWarpSize) head[d] = float(head[d] * factor * weight[d]);
  __syncwarp();
}

// The rotation of reference/rotate.h, bit for bit: products of floats are exact in double, so
// fusing one with the sum changes nothing.
__device__ inline void rotate(const Rotation& rotation, int64_t row, const float* head, float* to,
                              int head_dim, int lane) {
  const int pairs = int(rotation.rotary_dim / 2);
  const bool half = rotation.pairing == Pairing::kHalf;
  for (int d = lane; d < pairs; d += kWarpSize) {
    const int first = half ? d : 2 * d, second = half ? d + pairs : 2 * d + 1;
    const double cos = rotation.cos[row * pairs + d], sin = rotation.sin[row * pairs + d];
    const double x = head[first], y = head[second];
    to[first] = float(x * cos - y * sin);
    to[second] = float(y * cos + x * sin);
  }
  for (int d = 2 * pairs + lane; d < head_dim; d += kWarpSize) to[d] = head[d];
  __syncwarp();
}

// Rounds to 16 bits, two numbers per lane.
template <typename T>
__device__ inline void write_rounded(const float* numbers, void* to, int head_dim, int lane) {
  for (int word = lane; word < head_dim / 2; word += kWarpSize) {
    static_cast<uint32_t*>(to)[word] = pack<T>(numbers[2 * word], numbers[2 * word + 1]);
  }
}

// Note: [Int8] of kernels/page.h.
__device__ inline void write_codes(const float* numbers, int8_t* codes, float* scale_at,
                                   int head_dim, int lane) {
  float largest = 0;
  bool is_finite = true;
  for (int d = lane; d < head_dim; d += kWarpSize) {
    is_finite = is_finite && fabsf(numbers[d]) <= FLT_MAX;  // false for NaN
    largest = fmaxf(largest, fabsf(numbers[d]));
  }
  is_finite = __all_sync(kWarp, is_finite);
  float scale = warp_max(largest) / 127;
  if (scale < FLT_MIN) scale = 0;
  if (!is_finite) scale = nanf("");
  if (lane == 0) *scale_at = scale;
  for (int d = lane; d < head_dim; d += kWarpSize) {
    codes[d] = scale > 0 ? int8_t(rintf(numbers[d] / scale)) : int8_t(0);
  }
}

// A token's slot.
struct PageSlot {
  std::byte* page;
  int64_t row;  // of the page
};

__device__ inline PageSlot slot_of(const Pages& pages, const TokenRow& token) {
  const SequencePages& sequence = pages.sequences[token.sequence];
  if (token.index < sequence.sinks) {
    return {page_at(pages, sequence, token.index / kPageRows), token.index % kPageRows};
  }
  const int64_t i = token.index - sequence.sinks;
  return {window_page(pages, sequence, i / kPageRows), i % kPageRows};
}

// T: the type of a page's numbers.
template <typename T>
__device__ inline void write_to_page(const RopeAppendArgs& args, const TokenRow& token, Part part,
                                     int kv_head, const float* numbers, int lane) {
  const PageShape& shape = args.pages.shape;
  const PageSlot slot = slot_of(args.pages, token);
  std::byte* half =
      slot.page + (part == Part::kKey ? shape.key_offset(kv_head) : shape.value_offset(kv_head));
  T* at = reinterpret_cast<T*>(half) + slot.row * shape.head_dim;
  if constexpr (sizeof(T) == 1) {
    float* scale = reinterpret_cast<float*>(half + shape.scale_offset(slot.row));
    write_codes(numbers, at, scale, int(shape.head_dim), lane);
  } else {
    write_rounded<T>(numbers, at, int(shape.head_dim), lane);
  }
}

// Note: [One head, one warp]
// A head stays in shared memory between its steps, because lanes divide it differently to load it,
// to rotate its pairs and to round it. Rotations go from `head` to `rotated`.
template <typename T, typename QueryT>
__global__ void __launch_bounds__(kWarps* kWarpSize) rope_append_kernel(RopeAppendArgs args) {
  SHARED(float4, heads_of_block, [kWarps][kMostHeadDim / 4]);
  SHARED(float, rotated_of_block, [kWarps][kMostHeadDim]);
  wait_for_previous();
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int64_t row = blockIdx.x;
  const int h = int(blockIdx.y) * kWarps + warp;
  const int kv_heads = int(args.pages.shape.kv_heads), head_dim = int(args.pages.shape.head_dim);
  const TokenRow token = args.tokens[row];
  if (token.sequence < 0 || h >= args.heads + 2 * kv_heads) return;
  float* const head = reinterpret_cast<float*>(heads_of_block[warp]);
  float* const rotated = rotated_of_block[warp];

  for (int d = 4 * lane; d < head_dim; d += 4 * kWarpSize) {
    const int64_t column = int64_t{h} * head_dim + d;
    float4 x = sum_of_splits4(args.qkv, row, column);
    if (args.bias != nullptr) {
      const float* bias = args.bias + column;
      x = make_float4(x.x + bias[0], x.y + bias[1], x.z + bias[2], x.w + bias[3]);
    }
    heads_of_block[warp][d / 4] = x;
  }
  __syncwarp();

  if (h < args.heads) {
    if (args.query_norm != nullptr) norm(head, args.query_norm, args.norm_eps, head_dim, lane);
    const int64_t to = (row * args.heads + h) * head_dim;
    rotate(args.by_index, row, head, rotated, head_dim, lane);
    write_rounded<QueryT>(rotated, static_cast<QueryT*>(args.query_window) + to, head_dim, lane);
    __syncwarp();
    rotate(args.by_rank, row, head, rotated, head_dim, lane);
    write_rounded<QueryT>(rotated, static_cast<QueryT*>(args.query_sink) + to, head_dim, lane);
  } else if (h < args.heads + kv_heads) {
    if (args.key_norm != nullptr) norm(head, args.key_norm, args.norm_eps, head_dim, lane);
    rotate(args.by_index, row, head, rotated, head_dim, lane);
    write_to_page<T>(args, token, Part::kKey, h - args.heads, rotated, lane);
  } else {
    write_to_page<T>(args, token, Part::kValue, h - args.heads - kv_heads, head, lane);
  }
}

}  // namespace

Status rope_append(const RopeAppendArgs& args, Stream stream) {
  const int64_t heads = args.heads + 2 * args.pages.shape.kv_heads;
  const dim3 grid(unsigned(args.rows), unsigned(divide_up(heads, kWarps)));
  const dim3 block(kWarps * kWarpSize);
  switch (args.pages.shape.type) {
    case DType::kFloat16: return launch(rope_append_kernel<f16, f16>, grid, block, 0, stream, args);
    case DType::kInt8:
      return launch(rope_append_kernel<int8_t, bf16>, grid, block, 0, stream, args);
    default: return launch(rope_append_kernel<bf16, bf16>, grid, block, 0, stream, args);
  }
}

}  // namespace sinkstream::cuda
