// A lane's share of a tile of weights in registers, and its fragments for the tensor cores.
//
// Note: [Exact pieces]
// Tensor cores multiply bf16 by bf16 exactly and add in float32. Weights reach them without loss:
//   bfloat16  unchanged
//   codes     as the integers they stand for, before the scale. With 0x4300 above its bits, a
//             code c below 128 is the bf16 128 + c, from which 128 and the format's offset are
//             subtracted, exactly. Tables of integers are looked up as int8. A zero point of 5
//             bits belongs to the offset, one of 13 bits to the minimum: a code of 8 bits less the
//             zero point would need 9. FP8 has four significant bits.
//   float16   as the sum of two bf16 (8 + 3 bits), float32 as the sum of three (8 + 8 + 8): each
//             piece is the rounded remainder. Exact for numbers from 2^-100 to 2^127.
// Inputs are bf16 already, so only the float32 sums round. Scales of two levels are multiplied in
// float32, which is exact too: 11 bits of float16 by at most 8. So is the minimum of a zero point:
// 11 bits by 13.
#pragma once

#include "kernels/cuda/linear/weights.h"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/word_ops.cuh"

namespace sinkstream::cuda {

// Holds all units of columns, or one. Note: [Tiles].
template <PanelFormat kFormat, int kUnits = kTileUnits>
struct TileRegisters {
  static constexpr int kLow = low_bits(kFormat), kHigh = high_bits(kFormat);
  // Of a whole tile's `words`; of one word, a unit has half.
  static constexpr int share_of(int words) {
    return kUnits == kTileUnits ? words : (words + 1) / kTileUnits;
  }
  static constexpr int kLowWords = share_of(kLow), kHighWords = share_of(kHigh);
  // An open block's scales are those of its units of columns.
  static constexpr int kTileScaleWords =
      is_open(kFormat) ? 2 * kTileUnits : lane_scale_bytes(kFormat) / 4;
  static constexpr int kScaleWords = share_of(kTileScaleWords);
  static constexpr int kHeadWords = lane_head_bytes(kFormat) / 4;
  static constexpr int kWords = kLowWords + kHighWords + kScaleWords + kHeadWords;

  uint32_t low[kLowWords];
  uint32_t high[kHighWords > 0 ? kHighWords : 1];
  uint32_t scales[kScaleWords > 0 ? kScaleWords : 1];
  uint32_t head[kHeadWords > 0 ? kHeadWords : 1];

  // From device memory, without caching it in L1.
  __device__ void load(const std::byte* tile, const std::byte* head_at, int lane) {
    static_assert(kUnits == kTileUnits && !is_open(kFormat));
    load(tile, head_at, lane, 0, [](const auto* address) { return load_streaming(address); });
  }
  // The same of open blocks: `scales_at`: of each unit's block.
  __device__ void load_open(const std::byte* tile, const std::byte* const (&scales_at)[kTileUnits],
                            int lane) {
    static_assert(kUnits == kTileUnits && is_open(kFormat));
    const auto fetch = [](const auto* address) { return load_streaming(address); };
    load(tile, nullptr, lane, 0, fetch);
#pragma unroll
    for (int unit = 0; unit < kTileUnits; ++unit) {
      load_words<2>(scales + 2 * unit, scales_at[unit] + lane / 4 * 8, fetch);
    }
  }
  // From shared memory: unit `first`. `after`: the head, or the scales of each unit's open block.
  __device__ void load_staged(const std::byte* tile, const std::byte* after, int lane, int first) {
    static_assert(kUnits == 1);
    const auto fetch = [](const auto* address) { return *address; };
    load(tile, after, lane, first, fetch);
    if constexpr (is_open(kFormat)) {
      load_words<2>(scales, after + first * kOpenScaleBytes + lane / 4 * 8, fetch);
    }
  }

  // Of rows group and group + 8, for the columns of group `i` of those held.
  __device__ float2 scale(int i) const {
    constexpr ScaleFields kScales = scale_fields(kFormat);
    if constexpr (is_open(kFormat)) {
      constexpr uint32_t kMask = kFormat.scales == Scales::kFloat ? 0xffffffffu : kScaleBits;
      return make_float2(__uint_as_float(scales[2 * i] & kMask),
                         __uint_as_float(scales[2 * i + 1] & kMask));
    } else if constexpr (kScales.field_bytes == 2) {
      return f16_floats(scales[i * kScales.fields]);
    } else {
      const uint32_t bytes = scales[i * kScales.fields / 2] >> (i * kScales.fields % 2 * 16);
      if constexpr (kFormat.scales == Scales::kPower) {
        return make_float2(power_of_two(bytes & 255), power_of_two(bytes >> 8 & 255));
      } else if constexpr (kFormat.scales == Scales::kNibbles) {
        return times(head[0], int(bytes & 15), int(bytes >> 8 & 15));
      } else {
        return times(head[0], int8_t(bytes), int8_t(bytes >> 8));
      }
    }
  }
  // To be added.
  __device__ float2 minimum(int i) const {
    if constexpr (kFormat.scales == Scales::kZeroPoint32) {
      const float2 scales_of_group = scale(i);
      return make_float2(
          product(scales_of_group.x, float(-zero_point_of<kFormat>(scales[2 * i]))),
          product(scales_of_group.y, float(-zero_point_of<kFormat>(scales[2 * i + 1]))));
    } else if constexpr (kFormat.scales == Scales::kHalfMinimum) {
      return f16_floats(scales[i * 2 + 1]);
    } else if constexpr (kFormat.scales == Scales::kNibbles) {
      const uint32_t bytes = scales[i / 2] >> (i % 2 * 16);
      return times(head[1], -int(bytes >> 4 & 15), -int(bytes >> 12 & 15));
    } else {
      static_assert(kFormat.scales == Scales::kTwoLevelMinimum);
      const uint32_t bytes = scales[i] >> 16;
      return times(head[1], -int8_t(bytes), -int8_t(bytes >> 8));
    }
  }

 private:
  static __device__ float2 times(uint32_t halves, int first, int second) {
    const float2 both = f16_floats(halves);
    return make_float2(product(both.x, float(first)), product(both.y, float(second)));
  }

  template <int kCount, typename Fetch>
  static __device__ void load_words(uint32_t* words, const std::byte* from, const Fetch& fetch) {
    static_assert(kCount == 1 || kCount == 2 || kCount == 4);
    if constexpr (kCount == 1) {
      words[0] = fetch(reinterpret_cast<const uint32_t*>(from));
    } else if constexpr (kCount == 2) {
      const uint2 two = fetch(reinterpret_cast<const uint2*>(from));
      words[0] = two.x, words[1] = two.y;
    } else {
      const uint4 four = fetch(reinterpret_cast<const uint4*>(from));
      words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    }
  }

  // A lane's words of a plane that it has kBits of per tile.
  template <int kBits, int kCount, typename Fetch>
  static __device__ void load_plane(uint32_t* words, const std::byte* plane, int lane, int first,
                                    const Fetch& fetch) {
    constexpr int kTogether = kBits < 4 ? kBits : 4;
    if constexpr (kCount >= kTogether) {
      // One bit: a word has both units.
      const int skipped = kBits == 1 ? 0 : first * kCount;
#pragma unroll
      for (int i = 0; i < kCount; i += kTogether) {
        load_words<kTogether>(words + i, plane + ((skipped + i) * kWarpSize + lane * kTogether) * 4,
                              fetch);
      }
      if constexpr (kBits == 1) words[0] >>= first * 8;
    } else {
      load_words<kCount>(words, plane + (lane * kTogether + first * kCount) * 4, fetch);
    }
  }

  template <typename Fetch>
  __device__ void load(const std::byte* tile, const std::byte* head_at, int lane, int first,
                       const Fetch& fetch) {
    load_plane<kLow, kLowWords>(low, tile, lane, first, fetch);
    if constexpr (kHigh > 0) {
      load_plane<kHigh, kHighWords>(high, tile + plane_bytes(kLow), lane, first, fetch);
    }
    if constexpr (kScaleWords > 0 && !is_open(kFormat)) {
      constexpr bool kIsShared = kTileScaleWords == 1;  // by both units
      const std::byte* of_lane =
          tile + tile_code_bytes(kFormat) + lane / 4 * lane_scale_bytes(kFormat);
      load_words<kScaleWords>(scales, of_lane + (kIsShared ? 0 : first * kScaleWords * 4), fetch);
      if constexpr (kIsShared) scales[0] >>= first * 16;
    }
    if constexpr (kHeadWords > 0) {
      load_words<kHeadWords>(head, head_at + lane / 4 * lane_head_bytes(kFormat), fetch);
    }
  }
};

// −128 − offset, twice, for an offset below 128.
constexpr uint32_t minus_128_and(int offset) {
  return 0xc300c300u + uint32_t(offset) * 0x00010001u;
}

// The low `bits` bits of both halves.
constexpr uint32_t low_of_halves(int bits) { return ((1u << bits) - 1) * 0x00010001u; }

// Pair n of a lane's integer codes below eight bits.
template <PanelFormat kFormat, int kUnits>
__device__ inline uint32_t code_pair(const TileRegisters<kFormat, kUnits>& tile, int n) {
  constexpr int kLow = low_bits(kFormat), kHigh = high_bits(kFormat);
  uint32_t codes =
      merge_bits(tile.low[n * kLow / 16] >> (n * kLow % 16), low_of_halves(kLow), k128);
  if constexpr (kHigh > 0) {
    const uint32_t word = tile.high[n * kHigh / 16];
    const int down = n * kHigh % 16 - kLow;  // to just above the low bits
    codes =
        merge_bits(down >= 0 ? word >> down : word << -down, low_of_halves(kHigh) << kLow, codes);
  }
  if constexpr (kFormat.scales == Scales::kZeroPoint24) {  // word r of a step has row 8 (r & 1)
    const uint32_t word = tile.scales[n / (4 * kUnitSteps) * 2 + n % 2];
    return multiply_add_pairs(codes, kOnes, minus_128_and(zero_point_of<kFormat>(word)));
  }
  return multiply_add_pairs(codes, kOnes, minus_128_and(kFormat.offset));
}

constexpr int pieces_of(const PanelFormat& format) {
  return format.number == Number::kFloat32 ? 3 : format.number == Number::kFloat16 ? 2 : 1;
}

// The numbers of pair n.
template <PanelFormat kFormat, int kUnits>
__device__ inline float2 number_pair(const TileRegisters<kFormat, kUnits>& tile, int n) {
  if constexpr (kFormat.number == Number::kFloat16) {
    return f16_floats(tile.low[n]);
  } else {
    return make_float2(__uint_as_float(tile.low[2 * n]), __uint_as_float(tile.low[2 * n + 1]));
  }
}

// The codes of step `step`, looked up.
template <PanelFormat kFormat, int kUnits>
__device__ inline void unpack_table(const TileRegisters<kFormat, kUnits>& tile, int step,
                                    uint32_t (&fragment)[4]) {
  const uint32_t first = look_up<kFormat.values>(tile.low[step]);
  const uint32_t second = look_up<kFormat.values>(tile.low[step] >> 16);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    fragment[r] = int8_pair(select_bytes(first, second, uint32_t(r | (4 + r) << 8)));
  }
}

// The A fragment of step `step` of those held: `fragment[0]` has the numbers or codes as bf16,
// later entries the remainders of float16 and float32.
template <PanelFormat kFormat, int kUnits>
__device__ inline void unpack(const TileRegisters<kFormat, kUnits>& tile, int step,
                              uint32_t (&fragment)[pieces_of(kFormat)][4]) {
  if constexpr (kFormat.values == CodeValues::kIq4Nl || kFormat.values == CodeValues::kFp4) {
    unpack_table(tile, step, fragment[0]);
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int n = 4 * step + r;
      if constexpr (kFormat.number == Number::kBFloat16) {
        fragment[0][r] = tile.low[n];
      } else if constexpr (kFormat.values == CodeValues::kE4m3) {
        fragment[0][r] = e4m3_pair(tile.low[n / 2] >> (8 * (n % 2)));
      } else if constexpr (kFormat.bits == 8) {
        fragment[0][r] = int8_pair(tile.low[n / 2] >> (8 * (n % 2)));
      } else if constexpr (is_coded(kFormat)) {
        fragment[0][r] = code_pair(tile, n);
      } else {
        float2 left = number_pair(tile, n);
#pragma unroll
        for (int piece = 0; piece < pieces_of(kFormat); ++piece) {
          fragment[piece][r] = pack<bf16>(left.x, left.y);
          const float2 taken = bf16_floats(fragment[piece][r]);
          left = make_float2(left.x - taken.x, left.y - taken.y);
        }
      }
    }
  }
}

}  // namespace sinkstream::cuda
