// linear with inputs in 16 bits (Note: [Inputs in 16 bits]): codes of 8 and 4 bits times integers.
// Other weights use linear/tile.inl.
//
// The sum over a group is an integer below 2^31, exact in any order. Converted to float and
// multiplied by the group's scale, it is `sum` in Note: [One order along K].
//
// Note: [Middle codes in place]
// Like Note: [Codes in place], for two of the four codes of a halfword. A full tile shifts them
// down. A single token has registers for four chains, one per position of a code: there the middle
// codes are masked in place, as 16 and 256 times the code, and their chains are shifted down once
// per group. Those sums stay below 15 · 256 · 32767 · 8 < 2^30. The topmost code is always shifted
// down.
#pragma once

#include "kernels/cpu/linear/tile.inl"

// Two codes of each row, as a pair of 16-bit integers along K; `pair` in [0, 16) of a group. For
// int4, columns 2 · pair and the next one; for int8, in each word of four columns, the first and
// third, then the second and fourth. `write_int16` lays out the inputs to match.
template <WeightType kType, bool kInPlace>
SINKSTREAM_INLINE PairVec code_pairs(const std::byte* group, int pair, int v) {
  const int row = v * kLanes;
  if constexpr (kType == WeightType::kInt8) {
    const auto bytes =
        reinterpret_cast<PairVec>(load_words(group + (pair / 2 * kPanelRows + row) * 4));
    return pair % 2 == 0 ? bytes << 8 >> 8 : bytes >> 8;
  } else {
    const UintVec words = load_words(group + (pair / 4 * kPanelRows + row) * 4);
    const int n = pair % 4;
    if (n == 3) return reinterpret_cast<PairVec>(shift_halfwords<12>(words));
    if (kInPlace) return reinterpret_cast<PairVec>(words & (0x000f000fu << (4 * n)));
    return reinterpret_cast<PairVec>((words >> (4 * n)) & 0x000f000f);
  }
}

template <WeightType kType, int kTokens>
SINKSTREAM_INLINE void add_group_int16(const std::byte* group, const uint32_t* x,
                                       const float* scales, const float* group_sums,
                                       Vec (&acc)[kTokens][kVectors]) {
  constexpr int kSums = kTokens * kVectors;
  constexpr bool kInPlace = kType != WeightType::kInt8 && kSums <= 2;
  // Chains in flight per output: enough to hide the latency of a dot product.
  constexpr int kInFlight = kInPlace || kSums == 1 ? 4 : kSums < 4 ? 2 : 1;
  constexpr int kPairs = static_cast<int>(kGroup) / 2;
  IntVec chain[kInFlight][kTokens][kVectors] = {};
#pragma GCC unroll 16
  for (int pair = 0; pair < kPairs; ++pair) {
    // As in `sum_group`: a full tile has no registers left for words of codes.
    if constexpr (kTokens == kMaxTile) asm("" : "+r"(group));
    PairVec codes[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) codes[v] = code_pairs<kType, kInPlace>(group, pair, v);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const UintVec input = broadcast_word(x[(pair / 4 * kTokens + t) * 4 + pair % 4]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        IntVec& to = chain[pair % kInFlight][t][v];
        to = dot_pairs(to, codes[v], reinterpret_cast<PairVec>(input));
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
  accumulate_group<kType, kTokens, kType != WeightType::kInt8>(group, 1.0f, group_sums, sum, acc);
}

template <WeightType kType, int kTokens>
void multiply_tile_int16(const Tile& tile) {
  constexpr int64_t kStep = kGroup / 2 * kTokens;
  const auto* x = static_cast<const uint32_t*>(tile.input);
  const float* scales = tile.scales;
  const float* sums = tile.sums;
  const std::byte* group = tile.panel;
  PrefetchLines prefetch = tile.prefetch;
  Vec acc[kTokens][kVectors] = {};
  for (int64_t left = tile.cols / kGroup; left > 0; --left) {
    prefetch_weights<kType, kTokens>(tile.prefetches_panel, group, &prefetch);
    add_group_int16<kType, kTokens>(group, x, scales, sums, acc);
    group += group_bytes(kType);
    x += kStep;
    scales += kTokens;
    sums += kTokens;
  }
  write_outputs<kTokens>(tile, acc);
}
