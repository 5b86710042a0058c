// Reads one number of a tiled matrix.
#pragma once

#include "kernels/cuda/linear/weights.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/word_ops.cuh"

namespace sinkstream::cuda {

template <typename T>
__device__ inline T number_at(const std::byte* address) {
  return *reinterpret_cast<const T*>(address);
}

// A plane's number of kBits bits.
template <int kBits>
__device__ inline uint32_t bits_at(const std::byte* plane, int row, int col) {
  const BitOffset at = offset_in_plane(kBits, row, col);
  return number_at<uint32_t>(plane + at.byte) >> at.shift & (~0u >> (32 - kBits));
}

// What a code stands for, before it is scaled.
template <PanelFormat kFormat>
__device__ inline int value_of_code(uint32_t code) {
  if constexpr (kFormat.bits == 8) return int8_t(code);
  if constexpr (kFormat.values != CodeValues::kInteger) {
    return int8_t(look_up<kFormat.values>(code));
  }
  return int(code) - kFormat.offset;
}

// A weight of an open block. `word`: of its row.
template <PanelFormat kFormat>
__device__ inline float weight_of_code(uint32_t code, uint32_t word) {
  if constexpr (kFormat.values == CodeValues::kE4m3) {
    return product(__uint_as_float(word), bf16_floats(e4m3_pair(code)).x);
  } else {
    const int value = value_of_code<kFormat>(code) - zero_point_of<kFormat>(word);
    return product(__uint_as_float(word & kScaleBits), float(value));
  }
}

// Of `row` for the group that `col` is in: the scale, and the number to add.
template <PanelFormat kFormat>
__device__ inline float2 scale_and_minimum(const std::byte* tile, const std::byte* head, int row,
                                           int col) {
  const auto field = [&](int i) { return tile + scale_in_tile(kFormat, row, col, i); };
  const auto half = [&](int i) {
    return to_float(number_at<f16>(head + half_in_head(kFormat, row, i)));
  };
  const auto times = [](float half, int level) { return product(half, float(level)); };
  if constexpr (kFormat.scales == Scales::kHalf) {
    return make_float2(to_float(number_at<f16>(field(0))), 0);
  } else if constexpr (kFormat.scales == Scales::kHalfMinimum) {
    return make_float2(to_float(number_at<f16>(field(0))), to_float(number_at<f16>(field(1))));
  } else if constexpr (kFormat.scales == Scales::kTwoLevel) {
    return make_float2(times(half(0), number_at<int8_t>(field(0))), 0);
  } else if constexpr (kFormat.scales == Scales::kTwoLevelMinimum) {
    return make_float2(times(half(0), number_at<int8_t>(field(0))),
                       times(-half(1), number_at<int8_t>(field(1))));
  } else if constexpr (kFormat.scales == Scales::kNibbles) {
    const int both = number_at<uint8_t>(field(0));
    return make_float2(times(half(0), both & 15), times(-half(1), both >> 4));
  } else {
    static_assert(kFormat.scales == Scales::kPower);
    return make_float2(power_of_two(number_at<uint8_t>(field(0))), 0);
  }
}

// `row` in [0, matrix.rows), `col` in [0, matrix.cols). Rounded once, to float32.
template <PanelFormat kFormat>
__device__ inline float weight_at(const TiledMatrix& matrix, int64_t row, int64_t col) {
  const int64_t col_tile = col / kTileCols;
  const std::byte* tile = matrix.tile(kFormat, row / kTileRows, col_tile);
  const int r = int(row % kTileRows), c = int(col % kTileCols);
  uint32_t number = bits_at<low_bits(kFormat)>(tile, r, c);
  if constexpr (high_bits(kFormat) > 0) {
    constexpr int kLow = low_bits(kFormat);
    number |= bits_at<high_bits(kFormat)>(tile + plane_bytes(kLow), r, c) << kLow;
  }
  if constexpr (kFormat.number == Number::kFloat32) {
    return __uint_as_float(number);
  } else if constexpr (kFormat.number == Number::kFloat16) {
    return f16_floats(number).x;
  } else if constexpr (kFormat.number == Number::kBFloat16) {
    return bf16_floats(number).x;
  } else if constexpr (is_open(kFormat)) {
    const std::byte* scales = matrix.rows_from(kFormat, row / kTileRows) +
                              open_scales_offset(kFormat, matrix.cols, matrix.block, col);
    return weight_of_code<kFormat>(number, number_at<uint32_t>(scales + open_scale_at(r)));
  } else {
    const std::byte* head = tile - head_before(kFormat, col_tile);
    const float2 scale = scale_and_minimum<kFormat>(tile, head, r, c);
    const float value = float(value_of_code<kFormat>(number));
    return has_minimum(kFormat) ? fmaf(scale.x, value, scale.y) : product(scale.x, value);
  }
}

}  // namespace sinkstream::cuda
