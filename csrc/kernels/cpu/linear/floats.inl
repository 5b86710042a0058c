// linear with floats: Way::kFma, with the order of Note: [One order along K].
//
// Note: [Codes in place]
// A 4-bit code is not shifted down. Masked in place and converted, it is 16^n times the code; the
// input that it multiplies was multiplied by 16^-n beforehand, which is exact. This saves one of
// three vector operations per code. The topmost code includes the sign bit and is shifted down.
// 8-bit codes are moved to the top byte with their sign, and the scale absorbs the 2^-24. Other
// codes are shifted down, and their offset is subtracted.
#pragma once

#include "kernels/cpu/linear/multiply.inl"

// What a 1 in a sum over 8-bit codes at the top of a word stands for.
constexpr float unit_value_of(const PanelFormat& format) {
  return format.bits == 8 && has_integers(format) ? 0x1p-24f : 1.0f;
}

// Weights, or what codes stand for, of vector `v` in column `col` of a unit.
template <PanelFormat kFormat>
SINKSTREAM_INLINE Vec floats_at(const std::byte* codes, int col, int v) {
  const int row = v * kLanes;
  if constexpr (kFormat.number == Number::kFloat32) {
    return load(reinterpret_cast<const float*>(codes) + col * kPanelRows + row);
  } else if constexpr (kFormat.number == Number::kFloat16) {
    return load_f16(reinterpret_cast<const f16*>(codes) + col * kPanelRows + row);
  } else if constexpr (kFormat.number == Number::kBFloat16) {
    const UintVec words = load_words(codes + (col / 2 * kPanelRows + row) * 4);
    return as_float(col % 2 == 0 ? words << 16 : words & 0xffff0000);
  } else if constexpr (kFormat.bits == 8) {
    const UintVec words = load_words(codes + (col / 4 * kPanelRows + row) * 4);
    const int byte = col % 4;
    if constexpr (kFormat.values == CodeValues::kE4m3) return e4m3_of_byte(words, byte);
    const UintVec top = byte == 0 ? words << 24 : (words << (24 - 8 * byte)) & 0xff000000;
    return to_float(reinterpret_cast<IntVec>(top));
  } else if constexpr (is_in_place(kFormat)) {  // columns in the order of a word's codes
    const UintVec words = load_words(codes + (col / 8 * kPanelRows + row) * 4);
    const int n = col % 8;
    const UintVec code = n == 7 ? words >> 28 : words & (0xfu << (4 * n));
    return to_float(reinterpret_cast<IntVec>(code));
  } else {
    return values_at<kFormat>(codes, col, v);
  }
}

template <>
struct Multiplier<Way::kFma> : AnyMultiplier {
  static constexpr int kCols = 1;
  using Sum = Vec;
  template <PanelFormat kFormat>
  using Scales = UnitScales<kFormat, unit_value_of(kFormat), is_in_place(kFormat)>;

  static constexpr bool is_value(const PanelFormat& format) {
    return format.number == Number::kFloat32;
  }
  static constexpr int kChainCols = 16;
  template <typename Weights, int kSums>
  static constexpr int chains() {
    return Weights::kGroup / kChainCols;
  }
  // Few outputs keep both chains in flight, to hide the latency of fma. Chains of 8 would hide more
  // of it, but adding many short chains slows a full tile down (80 instead of 94 GFLOP/s on Zen 3,
  // of 104).
  template <typename Weights, int kSums>
  static constexpr Step order(int n) {
    const bool is_together = kSums <= 4 && Weights::kGroup > kChainCols;
    const int chain = is_together ? n % 2 : n / kChainCols;
    const int col = is_together ? n / 2 : n % kChainCols;
    return {.index = chain * kChainCols + col, .chain = chain, .is_first = col == 0};
  }
  template <PanelFormat kFormat, bool kInPlace>
  SINKSTREAM_INLINE static UintVec weights_at(const std::byte* codes, int step, int v, NoTable) {
    return as_words(floats_at<kFormat>(codes, step, v));
  }
  // As a float, because the compiler lets an fma broadcast one itself, but no integer.
  SINKSTREAM_INLINE static Vec broadcast_input(const uint32_t* word) {
    return broadcast(__builtin_bit_cast(float, *word));
  }
  template <typename Weights>
  SINKSTREAM_INLINE static Vec multiply(Vec sum, UintVec weights, Vec input, bool is_first) {
    if (is_first) return as_float(weights) * input;
    return fma(as_float(weights), input, sum);
  }
  template <typename Weights, int kTokens, int kChains>
  SINKSTREAM_INLINE static void add(const Weights& weights, const TileInputs& inputs, int part,
                                    const Vec (&chains)[kChains][kTokens][kVectors],
                                    Vec (&acc)[kTokens][kVectors]) {
    if constexpr (kChains == 1) {
      add_group(weights.scales, part, inputs.sums + part * kTokens, chains[0], acc);
    } else {
      Vec sum[kTokens][kVectors];
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[t][v] = Vec{} + chains[0][t][v] + chains[1][t][v];
      }
      add_group(weights.scales, part, inputs.sums, sum, acc);
    }
  }
};
