// linear with bfloat16 inputs and dot instructions: bfloat16 weights, and codes of 8 and 4 bits,
// which bfloat16 represents exactly. float32 and float16 weights use linear/tile.inl.
//
// The order along K, for every output: a group of 32 columns is 16 pairs, in two chains of dot
// products that are then added; the sum is added to acc as in Note: [One order along K]. One chain
// takes the even pairs and the other the odd ones, so that with few tokens consecutive dot products
// are independent. With codes of 8 bits, one chain takes the first eight pairs, which is up to 3 %
// faster for many tokens. A dot product adds the odd column's product, then the even one's.
#pragma once

#include "kernels/cpu/linear/linear.inl"
#include "kernels/cpu/linear/pairs.inl"

template <WeightType kType, int kTokens>
SINKSTREAM_INLINE void add_group_dot(const std::byte* group, const uint32_t* x,
                                     const float* group_sums, UintVec table,
                                     Vec (&acc)[kTokens][kVectors]) {
  constexpr int kPairs = static_cast<int>(kGroup) / 2;
  Vec chain[2][kTokens] = {};
#pragma GCC unroll 16
  for (int pair = 0; pair < kPairs; ++pair) {  // in memory order
    const int to = kType == WeightType::kInt8 ? pair / (kPairs / 2) : pair % 2;
    const UintVec weights = pairs_at<kType>(group, pair, table);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const UintVec input = broadcast_word(x[(pair / 4 * kTokens + t) * 4 + pair % 4]);
      chain[to][t] = dot_bf16(chain[to][t], weights, input);
    }
  }
  Vec sum[kTokens][kVectors];
  for (int t = 0; t < kTokens; ++t) sum[t][0] = chain[0][t] + chain[1][t];
  if constexpr (is_quantized(kType)) {
    accumulate_codes<kType, kTokens>(group, group_sums, sum, acc);
  } else {
    for (int t = 0; t < kTokens; ++t) acc[t][0] = acc[t][0] + sum[t][0];
  }
}

template <WeightType kType, int kTokens>
void multiply_tile_dot(const Tile& tile) {
  constexpr int64_t kStep = kGroup / 2 * kTokens;
  const auto* x = static_cast<const uint32_t*>(tile.input);
  const float* sums = tile.sums;
  const std::byte* group = tile.panel;
  const UintVec table = code_table<kType>();
  PrefetchLines prefetch = tile.prefetch;
  Vec acc[kTokens][kVectors] = {};
  for (int64_t left = tile.cols / kGroup; left > 0; --left) {
    prefetch_weights<kType, kTokens>(tile.prefetches_panel, group, &prefetch);
    add_group_dot<kType, kTokens>(group, x, sums, table, acc);
    group += group_bytes(kType);
    x += kStep;
    sums += kTokens;
  }
  if constexpr (!is_quantized(kType)) {
    if (tile.cols % kGroup != 0) {  // one more group, padded with zeros
      alignas(64) std::byte padded[group_bytes(kType)] = {};
      __builtin_memcpy(padded, group, panel_bytes(kType, tile.cols % kGroup));
      add_group_dot<kType, kTokens>(padded, x, sums, table, acc);
    }
  }
  write_outputs<kTokens>(tile, acc);
}

void linear_dot(const LinearArgs& args, const Launch& launch) {
  if (args.input_type == InputType::kBFloat16) return run_linear<Way::kDots>(args, launch);
  linear_fma(args, launch);
}
