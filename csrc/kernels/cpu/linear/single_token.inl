// A single token times codes, in vectors: bit-identical to the tile unit, and cheaper than
// converting every group to bfloat16 in memory and loading it into a register. The threads of a
// pool flush denormals, as the unit does.
#pragma once

#include "kernels/cpu/linear/pairs.inl"
#include "kernels/cpu/linear/tile.inl"

// Prefetches codes kDistance after a group. Always to L1: a group takes about as long to compute as
// to read, and the latency of L2 would add to that.
template <WeightType kType>
SINKSTREAM_INLINE void prefetch_codes(const std::byte* group) {
  constexpr int64_t kDistance = 2048;
  prefetch_group_to<kType, true>(group, kDistance);
}

// Both codes of a pair; 8-bit codes are times 2^24, as in pairs_at.
struct FloatPair {
  Vec even, odd;
};

template <WeightType kType>
SINKSTREAM_INLINE FloatPair floats_at(const std::byte* group, int pair, UintVec table) {
  if constexpr (kType == WeightType::kInt8) {
    const UintVec words = load_words(group + pair / 2 * kPanelRows * 4);
    if (pair % 2 == 0) {
      return {as_float(float_of_byte<0>(words)), as_float(float_of_byte<1>(words))};
    }
    return {as_float(float_of_byte<2>(words)), as_float(float_of_byte<3>(words))};
  } else {
    const UintVec words = pairs_at<kType>(group, pair, table);
    return {as_float(words << 16), as_float(words & 0xffff0000)};
  }
}

// Adds one group to acc, in the order of Note: [What the tile unit adds]. `x`: floats.
template <WeightType kType>
SINKSTREAM_INLINE void add_group_of_one(const std::byte* group, const float* x,
                                        const float* group_sum, UintVec table,
                                        Vec (&acc)[1][kVectors]) {
  Vec even{}, odd{};
#pragma GCC unroll 16
  for (int pair = 0; pair < kTileRows; ++pair) {
    const FloatPair weights = floats_at<kType>(group, pair, table);
    even = fma(weights.even, broadcast(x[2 * pair]), even);
    odd = fma(weights.odd, broadcast(x[2 * pair + 1]), odd);
  }
  const Vec sum[1][kVectors] = {{Vec{} + (even + odd)}};  // 0 + −0 is 0
  accumulate_codes<kType, 1>(group, group_sum, sum, acc);
}

template <WeightType kType>
void multiply_single_token(const Tile& tile) {
  const auto* x = static_cast<const float*>(tile.input);
  const float* group_sum = tile.sums;
  const std::byte* group = tile.panel;
  const UintVec table = code_table<kType>();
  Vec acc[1][kVectors] = {};
  for (int64_t groups = tile.cols / kGroup; groups > 0; --groups) {
    if (tile.prefetches_panel) prefetch_codes<kType>(group);
    add_group_of_one<kType>(group, x, group_sum, table, acc);
    group += group_bytes(kType);
    x += kGroup;
    ++group_sum;
  }
  write_outputs<1>(tile, acc);
}
