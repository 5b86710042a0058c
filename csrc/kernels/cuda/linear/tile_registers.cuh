// A lane's share of a tile of weights in registers, and its fragments for the tensor cores.
//
// Note: [Exact pieces]
// Tensor cores multiply bf16 by bf16 exactly and add in float32. Weights reach them without loss:
//   bfloat16  unchanged
//   codes     as integers: with 0x4300 above its bits, a code c below 128 is the bf16 128 + c, from
//             which 128 (and for int4 its offset 8) is subtracted, exactly
//   float16   as the sum of two bf16 (8 + 3 bits), float32 as the sum of three (8 + 8 + 8): each
//             piece is the rounded remainder. Exact for numbers from 2^-100 to 2^127.
// Inputs are bf16 already, so only the float32 sums round.
#pragma once

#include "kernels/cuda/linear/weights.h"
#include "kernels/cuda/linear/word_ops.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sinkstream::cuda {

// Holds all groups of columns, or one.
template <WeightType kType, int kGroups = kTileGroups>
struct TileRegisters {
  static constexpr int kWords =
      int(tile_code_bytes(kType)) / (4 * kWarpSize) * kGroups / kTileGroups;
  static constexpr int kScaleWords = scales_per_group(kType) * kGroups;

  uint32_t words[kWords];
  uint32_t scales[kScaleWords > 0 ? kScaleWords : 1];  // Note: [Tiles]

  // A lane's codes begin at `codes_offset(lane)` of a tile, its scales `scales_offset(lane)` bytes
  // after that.
  static __device__ int codes_offset(int lane) { return lane * int(sizeof(uint4)); }
  static __device__ int scales_offset(int lane) {
    return int(tile_code_bytes(kType)) + lane / 4 * scales_per_group(kType) * kTileGroups * 4 -
           codes_offset(lane);
  }

  // From device memory, without caching them in L1.
  __device__ void load(const std::byte* codes, int scales_offset) {
    static_assert(kGroups == kTileGroups);
    load(codes, codes + scales_offset, [](const auto* address) { return load_streaming(address); });
  }
  // From shared memory: the groups of columns from `first` on.
  __device__ void load_staged(const std::byte* codes, int scales_offset, int first) {
    constexpr int kGroupBytes = kWords / kGroups % 4 == 0
                                    ? int(tile_code_bytes(kType)) / kTileGroups
                                    : kWords / kGroups * 4;
    load(codes + first * kGroupBytes, codes + scales_offset + first * scales_per_group(kType) * 4,
         [](const auto* address) { return *address; });
  }

  // Of rows group and group + 8, for the columns of `column_group`.
  __device__ float2 scale(int column_group) const {
    return f16_floats(scales[column_group * scales_per_group(kType)]);
  }
  __device__ float2 minimum(int column_group) const {
    return f16_floats(scales[column_group * scales_per_group(kType) + 1]);
  }

 private:
  template <typename Fetch>
  __device__ void load(const std::byte* codes, const std::byte* scales_at, const Fetch& fetch) {
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = fetch(reinterpret_cast<const uint4*>(codes + i * kWarpSize * 4));
        words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
      }
    } else {  // one group of int4
      const uint2 two = fetch(reinterpret_cast<const uint2*>(codes));
      words[0] = two.x, words[1] = two.y;
    }
    if constexpr (kScaleWords == 1) scales[0] = fetch(reinterpret_cast<const uint32_t*>(scales_at));
    if constexpr (kScaleWords == 2) {
      const uint2 two = fetch(reinterpret_cast<const uint2*>(scales_at));
      scales[0] = two.x, scales[1] = two.y;
    }
    if constexpr (kScaleWords == 4) {
      const uint4 four = fetch(reinterpret_cast<const uint4*>(scales_at));
      scales[0] = four.x, scales[1] = four.y, scales[2] = four.z, scales[3] = four.w;
    }
  }
};

constexpr uint32_t kOnes = 0x3f803f80;       // two bf16 1
constexpr uint32_t kMinusOnes = 0xbf80bf80;  // −1
constexpr uint32_t k128 = 0x43004300;        // 128
constexpr uint32_t kMinus128 = 0xc300c300;   // −128
constexpr uint32_t kMinus136 = 0xc308c308;   // −136

// The int8 codes in the low bytes of both halves. With sign bit s and low seven bits c, a code is c
// − 128 s: (128 + c) − (128 + 128 s), where the latter is 0x4300 with the sign bit set.
__device__ inline uint32_t int8_pair(uint32_t word) {
  const uint32_t low = merge_bits(word, 0x007f007f, k128);
  const uint32_t sign = merge_bits(word, 0x00800080, k128);
  return multiply_add_pairs(sign, kMinusOnes, low);
}

// The int4 codes in the low four bits of both halves.
template <WeightType kType>
__device__ inline uint32_t int4_pair(uint32_t word) {
  const uint32_t shifted = merge_bits(word, 0x000f000f, k128);
  constexpr uint32_t kOffset = kType == WeightType::kInt4 ? kMinus136 : kMinus128;
  return multiply_add_pairs(shifted, kOnes, kOffset);
}

constexpr int pieces_of(WeightType type) {
  return type == WeightType::kFloat32 ? 3 : type == WeightType::kFloat16 ? 2 : 1;
}

// The A fragment of step `step`: `fragment[0]` has the numbers or codes as bf16, later entries the
// remainders of float16 and float32.
template <WeightType kType, int kGroups>
__device__ inline void unpack(const TileRegisters<kType, kGroups>& tile, int step,
                              uint32_t (&fragment)[pieces_of(kType)][4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if constexpr (kType == WeightType::kBFloat16) {
      fragment[0][r] = tile.words[4 * step + r];
    } else if constexpr (kType == WeightType::kInt8) {
      fragment[0][r] = int8_pair(tile.words[2 * step + r / 2] >> (8 * (r % 2)));
    } else if constexpr (kType == WeightType::kInt4 || kType == WeightType::kInt4Minimum) {
      fragment[0][r] = int4_pair<kType>(tile.words[step] >> (4 * r));
    } else {
      float2 left;
      if constexpr (kType == WeightType::kFloat16) {
        left = f16_floats(tile.words[4 * step + r]);
      } else {
        left = make_float2(__uint_as_float(tile.words[8 * step + 2 * r]),
                           __uint_as_float(tile.words[8 * step + 2 * r + 1]));
      }
#pragma unroll
      for (int piece = 0; piece < pieces_of(kType); ++piece) {
        fragment[piece][r] = pack<bf16>(left.x, left.y);
        const float2 taken = bf16_floats(fragment[piece][r]);
        left = make_float2(left.x - taken.x, left.y - taken.y);
      }
    }
  }
}

}  // namespace sinkstream::cuda
