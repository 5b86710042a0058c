// linear with inputs in 16 bits (Note: [Inputs as integers]): codes times integers. Other weights
// use linear/tile.inl.
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

#include "kernels/cpu/linear/tile.inl"

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

template <PanelFormat kFormat, int kTokens>
SINKSTREAM_INLINE void add_unit_int16(const Unit& unit, const uint32_t* x, const float* scales,
                                      const float* input_sums, Vec (&acc)[kTokens][kVectors]) {
  constexpr int kSums = kTokens * kVectors;
  constexpr bool kInPlace = is_in_place(kFormat) && kSums <= 2;
  // Chains in flight per output: enough to hide the latency of a dot product.
  constexpr int kInFlight = kInPlace || kSums == 1 ? 4 : kSums < 4 ? 2 : 1;
  constexpr int kPairs = static_cast<int>(sum_cols(kFormat)) / 2;  // that are summed together
  const std::byte* codes = codes_of<kFormat>(unit);
#pragma GCC unroll 2
  for (int part = 0; part < kUnit / 2 / kPairs; ++part) {
    IntVec chain[kInFlight][kTokens][kVectors] = {};
#pragma GCC unroll 16
    for (int n = 0; n < kPairs; ++n) {
      // As in `add_chains`: a full tile has no registers left for words of codes.
      if constexpr (kTokens == kMaxTile) asm("" : "+r"(codes));
      const int pair = part * kPairs + n;
      PairVec values[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        values[v] = integer_pairs<kFormat, kInPlace>(codes, pair, v);
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const UintVec input = broadcast_word(x[(pair / 4 * kTokens + t) * 4 + pair % 4]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          IntVec& to = chain[pair % kInFlight][t][v];
          to = dot_pairs(to, values[v], reinterpret_cast<PairVec>(input));
        }
      }
    }
    Vec sum[kTokens][kVectors];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        IntVec whole = chain[0][t][v];
        for (int c = 1; c < kInFlight; ++c) {
          whole += kInPlace && c < 3 ? chain[c][t][v] >> (4 * c) : chain[c][t][v];
        }
        sum[t][v] = to_float(whole) * broadcast(scales[t]);
      }
    }
    accumulate_group<kFormat, kTokens, is_in_place(kFormat)>(unit, part, 1.0f,
                                                             input_sums + part * kTokens, sum, acc);
  }
}

template <PanelFormat kFormat, int kTokens>
void multiply_tile_int16(const Tile& tile) {
  const auto* x = static_cast<const uint32_t*>(tile.input);
  const float* scales = tile.scales;
  const float* sums = tile.sums;
  PrefetchLines prefetch = tile.prefetch;
  Vec acc[kTokens][kVectors] = {};
  for_each_unit<kFormat>(tile.panel, tile.cols, tile.block, [&](const Unit& unit) {
    prefetch_weights<kFormat, kTokens>(tile.prefetches_panel, unit, &prefetch);
    add_unit_int16<kFormat, kTokens>(unit, x, scales, sums, acc);
    x += kUnit / 2 * kTokens;
    scales += kTokens;
    sums += kUnit / sum_cols(kFormat) * kTokens;
  });
  write_outputs<kTokens>(tile, acc);
}
