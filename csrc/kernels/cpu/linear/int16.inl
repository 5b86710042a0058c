// linear with inputs in 16 bits (Note: [Inputs as integers]): codes times integers. Other weights
// use linear/floats.inl.
//
// The sum over a unit, or over each half of it that has its own scale, is an integer below 2^31,
// exact in any order. Converted to float and multiplied by the inputs' scale, it is `sum` in Note:
// [One order along K].
//
// Note: [Middle codes in place]
// Like Note: [Codes in place], for two of the four codes of a halfword. A full tile shifts them
// down. A single token has registers for four chains, one per position of a code: there the middle
// codes are masked in place, as 16 and 256 times the code, and their chains are shifted down once
// per unit. Those sums stay below 15 · 256 · 32767 · 8 < 2^30. The topmost code is always shifted
// down.
#pragma once

#include "kernels/cpu/linear/multiply.inl"

// Two codes of each row, as a pair of 16-bit integers along K; `pair` in [0, 16) of a unit: columns
// 2 · pair and the next one; for 8-bit codes, in each word of four columns, the first and third,
// then the second and fourth. `write_int16` lays out the inputs to match.
template <PanelFormat kFormat, bool kInPlace>
SINKSTREAM_INLINE PairVec integer_pairs(const std::byte* codes, int pair, int v) {
  if constexpr (kFormat.bits == 8) {
    const auto bytes = reinterpret_cast<PairVec>(code_word(codes, pair / 2, v));
    return pair % 2 == 0 ? bytes << 8 >> 8 : bytes >> 8;
  } else if constexpr (is_in_place(kFormat)) {
    const UintVec words = code_word(codes, pair / 4, v);
    const int n = pair % 4;
    if (n == 3) return reinterpret_cast<PairVec>(shift_halfwords(words, 12));
    if (kInPlace) return reinterpret_cast<PairVec>(words & (0x000f000fu << (4 * n)));
    return reinterpret_cast<PairVec>((words >> (4 * n)) & 0x000f000f);
  } else {
    return pair_values<kFormat>(codes, pair, v);
  }
}

template <>
struct Multiplier<Way::kInt16> : AnyMultiplier {
  static constexpr int kCols = 2;
  using Sum = IntVec;
  template <PanelFormat kFormat>
  using Scales = UnitScales<kFormat, 1.0f, is_in_place(kFormat)>;

  // Enough chains to hide the latency of a dot product.
  template <typename Weights, int kSums>
  static constexpr int chains() {
    return Weights::kInPlace || kSums == 1 ? 4 : kSums < 4 ? 2 : 1;
  }
  template <typename Weights, int kSums>
  static constexpr Step order(int n) {
    return {.index = n, .chain = n % chains<Weights, kSums>()};
  }
  template <PanelFormat kFormat, bool kInPlace>
  SINKSTREAM_INLINE static UintVec weights_at(const std::byte* codes, int step, int v, NoTable) {
    return reinterpret_cast<UintVec>(integer_pairs<kFormat, kInPlace>(codes, step, v));
  }
  template <typename Weights>
  SINKSTREAM_INLINE static IntVec multiply(IntVec sum, UintVec weights, UintVec input, bool) {
    return dot_pairs(sum, reinterpret_cast<PairVec>(weights), reinterpret_cast<PairVec>(input));
  }
  template <typename Weights, int kTokens, int kChains>
  SINKSTREAM_INLINE static void add(const Weights& weights, const TileInputs& inputs, int part,
                                    const IntVec (&chains)[kChains][kTokens][kVectors],
                                    Vec (&acc)[kTokens][kVectors]) {
    Vec sum[kTokens][kVectors];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        IntVec whole = chains[0][t][v];
        for (int c = 1; c < kChains; ++c) {
          whole += Weights::kInPlace && c < 3 ? chains[c][t][v] >> (4 * c) : chains[c][t][v];
        }
        sum[t][v] = to_float(whole) * broadcast(inputs.scales[t]);
      }
    }
    add_group(weights.scales, part, inputs.sums + part * kTokens, sum, acc);
  }
};
