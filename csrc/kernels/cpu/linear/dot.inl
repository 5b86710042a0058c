// linear with bfloat16 inputs and dot instructions: bfloat16 weights, and codes, whose values
// bfloat16 represents exactly. float32 and float16 weights use linear/tile.inl.
//
// The order along K, for every output: a unit of 32 columns is 16 pairs, in two chains of dot
// products that are then added; the sum is added to acc as in Note: [One order along K]. One chain
// takes the even pairs and the other the odd ones, so that with few tokens consecutive dot products
// are independent. With codes of 8 bits, one chain takes the first eight pairs, which is up to 3 %
// faster for many tokens. Groups of 16 columns have two chains each. A dot product adds the odd
// column's product, then the even one's.
#pragma once

#include "kernels/cpu/linear/linear.inl"
#include "kernels/cpu/linear/pairs.inl"

template <PanelFormat kFormat, int kTokens>
SINKSTREAM_INLINE void add_unit_dot(const Unit& unit, const std::byte* codes, const uint32_t* x,
                                    const float* input_sums, const ValueTable& table,
                                    Vec (&acc)[kTokens][kVectors]) {
  constexpr int kPairs = static_cast<int>(sum_cols(kFormat)) / 2;  // that are summed together
#pragma GCC unroll 2
  for (int part = 0; part < kUnit / 2 / kPairs; ++part) {
    Vec chain[2][kTokens] = {};
#pragma GCC unroll 16
    for (int n = 0; n < kPairs; ++n) {  // in memory order
      const int pair = part * kPairs + n;
      const int to = kFormat.bits == 8 ? n / (kPairs / 2) : n % 2;
      const UintVec weights = pairs_at<kFormat>(codes, pair, table);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const UintVec input = broadcast_word(x[(pair / 4 * kTokens + t) * 4 + pair % 4]);
        chain[to][t] = dot_bf16(chain[to][t], weights, input);
      }
    }
    Vec sum[kTokens][kVectors];
    for (int t = 0; t < kTokens; ++t) sum[t][0] = chain[0][t] + chain[1][t];
    if constexpr (is_coded(kFormat)) {
      accumulate_group<kFormat, kTokens>(unit, part, unit_value_of(kFormat),
                                         input_sums + part * kTokens, sum, acc);
    } else {
      for (int t = 0; t < kTokens; ++t) acc[t][0] = acc[t][0] + sum[t][0];
    }
  }
}

template <PanelFormat kFormat, int kTokens>
void multiply_tile_dot(const Tile& tile) {
  const auto* x = static_cast<const uint32_t*>(tile.input);
  const float* sums = tile.sums;
  const ValueTable table = value_table<kFormat>();
  PrefetchLines prefetch = tile.prefetch;
  Vec acc[kTokens][kVectors] = {};
  for_each_unit<kFormat>(tile.panel, tile.cols, tile.block, [&](const Unit& unit) {
    prefetch_weights<kFormat, kTokens>(tile.prefetches_panel, unit, &prefetch);
    add_unit_dot<kFormat, kTokens>(unit, codes_of<kFormat>(unit), x, sums, table, acc);
    x += kUnit / 2 * kTokens;
    sums += kUnit / sum_cols(kFormat) * kTokens;
  });
  if constexpr (!is_coded(kFormat)) {
    if (tile.cols % kUnit != 0) {  // one more unit, padded with zeros
      alignas(64) std::byte padded[unit_bytes(kFormat)] = {};
      __builtin_memcpy(padded, last_columns<kFormat>(tile.panel, tile.cols),
                       panel_bytes(kFormat, tile.cols % kUnit));
      add_unit_dot<kFormat, kTokens>({}, padded, x, sums, table, acc);
    }
  }
  write_outputs<kTokens>(tile, acc);
}

void linear_dot(const LinearArgs& args, const Launch& launch) {
  for_each_input(args, [&](const LinearArgs& run) {
    if (run.input_type == InputType::kBFloat16) return run_linear<Way::kDots>(run, launch);
    if (run.input_type == InputType::kInt8) return linear_int8(run, launch, linear_dot);
    linear_fma(run, launch);
  });
}
