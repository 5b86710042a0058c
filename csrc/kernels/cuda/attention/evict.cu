#include "kernels/cuda/attention/evict.h"

#include <cfloat>

#include "kernels/cuda/attention/find_page.cuh"
#include "kernels/cuda/portable.h"

namespace sinkstream::cuda {
namespace {

constexpr int kWarps = 16;      // one token each
constexpr int kMostPairs = 8;   // of dimensions, per lane: head_dim is at most 512
constexpr int kPartBytes = 16;  // of a value, that a lane moves at once
constexpr int kMostParts = 2;   // per lane

// Dimensions `first` and `second`, which rotate together or pass through.
struct RotaryPair {
  int first;
  int second;
  bool rotates;
};

__device__ inline RotaryPair rotary_pair(const Rotation& rotation, int pair) {
  const int turning = int(rotation.rotary_dim) / 2;
  if (pair >= turning) return {2 * pair, 2 * pair + 1, false};
  if (rotation.pairing == Pairing::kHalf) return {pair, pair + turning, true};
  return {2 * pair, 2 * pair + 1, true};
}

__device__ inline float widened(bf16 x) { return to_float(x); }
__device__ inline float widened(f16 x) { return to_float(x); }
__device__ inline float widened(int8_t x) { return x; }

// The scale of an int8 row (Note [Int8] of kernels/page.h) from the lane's largest magnitude, which
// is infinite if one of its numbers is infinite or NaN.
__device__ inline float int8_scale(float largest) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, distance));
  }
  if (largest == INFINITY) return NAN;
  const float scale = largest / 127;
  return scale < 0x1p-126f ? 0 : scale;
}

// One head's key or value of one token.
template <typename Cache>
struct StoredRow {
  Cache* numbers;
  float* scale;  // of int8
};

template <typename Cache>
__device__ inline StoredRow<Cache> stored_row(const EvictArgs& args, int layer,
                                              const SequenceSlot& slot, int64_t offset) {
  const PageShape& shape = args.pages.shape;
  Pages pages = args.pages;
  pages.layer += layer;
  std::byte* half = page_at(pages, pages.sequences[args.sequence], slot.page_ordinal) + offset;
  return {reinterpret_cast<Cache*>(half) + slot.row * shape.head_dim,
          reinterpret_cast<float*>(half + shape.scale_offset(slot.row))};
}

// A warp's token, on its way from the old slot to the new one.
template <typename Cache>
struct MovedToken {
  float key[kMostPairs][2];  // rotated
  float largest;             // magnitude of the lane's numbers
  uint4 value[kMostParts];   // as stored
  float value_scale;
};

template <typename Cache>
__device__ inline void load_token(MovedToken<Cache>& moved, const EvictArgs& args, int layer,
                                  int head, const SequenceSlot& slot) {
  constexpr bool has_scale = sizeof(Cache) == 1;
  const PageShape& shape = args.pages.shape;
  const int lane = threadIdx.x % kWarpSize;
  const auto key = stored_row<Cache>(args, layer, slot, shape.key_offset(head));
  const auto value = stored_row<Cache>(args, layer, slot, shape.value_offset(head));
  const float scale = has_scale ? *key.scale : 1;
  moved.largest = 0;
#pragma unroll
  for (int i = 0; i < kMostPairs; ++i) {
    const int pair = lane + i * kWarpSize;
    if (2 * pair >= shape.head_dim) break;
    const RotaryPair at = rotary_pair(args.rotation, pair);
    const float x = product(widened(key.numbers[at.first]), scale);
    const float y = product(widened(key.numbers[at.second]), scale);
    moved.key[i][0] = x;
    moved.key[i][1] = y;
    if (at.rotates) {
      // Like the reference. Products of floats are exact in double, so fusing one with the sum
      // changes nothing.
      const double cos = args.rotation.cos[pair], sin = args.rotation.sin[pair];
      moved.key[i][0] = float(x * cos - y * sin);
      moved.key[i][1] = float(y * cos + x * sin);
    }
    for (const float z : moved.key[i]) {
      moved.largest = fabsf(z) <= FLT_MAX ? fmaxf(moved.largest, fabsf(z)) : INFINITY;
    }
  }
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    const int part = lane + i * kWarpSize;
    if (part * kPartBytes >= shape.head_dim * int(sizeof(Cache))) break;
    moved.value[i] = reinterpret_cast<const uint4*>(value.numbers)[part];
  }
  if constexpr (has_scale) moved.value_scale = *value.scale;
}

template <typename Cache>
__device__ inline void store_token(const MovedToken<Cache>& moved, const EvictArgs& args, int layer,
                                   int head, const SequenceSlot& slot) {
  const PageShape& shape = args.pages.shape;
  const int lane = threadIdx.x % kWarpSize;
  const auto key = stored_row<Cache>(args, layer, slot, shape.key_offset(head));
  const auto value = stored_row<Cache>(args, layer, slot, shape.value_offset(head));
  float scale = 1;
  if constexpr (sizeof(Cache) == 1) {
    scale = int8_scale(moved.largest);
    if (lane == 0) {
      *key.scale = scale;
      *value.scale = moved.value_scale;
    }
  }
#pragma unroll
  for (int i = 0; i < kMostPairs; ++i) {
    const int pair = lane + i * kWarpSize;
    if (2 * pair >= shape.head_dim) break;
    const RotaryPair at = rotary_pair(args.rotation, pair);
    if constexpr (sizeof(Cache) == 1) {
      key.numbers[at.first] = scale > 0 ? int8_t(rintf(moved.key[i][0] / scale)) : 0;
      key.numbers[at.second] = scale > 0 ? int8_t(rintf(moved.key[i][1] / scale)) : 0;
    } else {
      key.numbers[at.first] = rounded<Cache>(moved.key[i][0]);
      key.numbers[at.second] = rounded<Cache>(moved.key[i][1]);
    }
  }
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    const int part = lane + i * kWarpSize;
    if (part * kPartBytes >= shape.head_dim * int(sizeof(Cache))) break;
    reinterpret_cast<uint4*>(value.numbers)[part] = moved.value[i];
  }
}

// Block (key head, layer). It reads one row per warp before it writes any of them.
template <typename Cache>
__global__ void __launch_bounds__(kWarps* kWarpSize) evict_kernel(EvictArgs args) {
  wait_for_previous();
  const int head = blockIdx.x, layer = blockIdx.y;
  for (int first = 0; first < args.rows; first += kWarps) {
    const int row = first + int(threadIdx.x) / kWarpSize;
    MovedToken<Cache> moved;
    if (row < args.rows) load_token(moved, args, layer, head, args.from[row]);
    __syncthreads();
    if (row < args.rows) store_token(moved, args, layer, head, args.to[row]);
  }
}

template <typename Cache>
Status evict_of(const EvictArgs& args, Stream stream) {
  return launch(evict_kernel<Cache>, dim3(unsigned(args.pages.shape.kv_heads), args.layers),
                dim3(kWarps * kWarpSize), 0, stream, args);
}

}  // namespace

Status evict(const EvictArgs& args, Stream stream) {
  switch (args.pages.shape.type) {
    case DType::kFloat16: return evict_of<f16>(args, stream);
    case DType::kInt8: return evict_of<int8_t>(args, stream);
    default: return evict_of<bf16>(args, stream);
  }
}

}  // namespace sinkstream::cuda
