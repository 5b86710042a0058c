// A single token times codes, in vectors: bit-identical to the tile unit, and cheaper than
// converting every unit to bfloat16 in memory and loading it into a register. The threads of a
// pool flush denormals, as the unit does.
#pragma once

#include "kernels/cpu/linear/pairs.inl"

// Prefetches codes kDistance after a unit. Always to L1: a unit takes about as long to compute as
// to read, and the latency of L2 would add to that.
template <PanelFormat kFormat>
SINKSTREAM_INLINE void prefetch_codes(const Unit& unit) {
  constexpr int64_t kDistance = 2048;
  prefetch_unit_to<kFormat, true>(unit, kDistance);
}

// What both codes of a pair stand for; integers of 8 bits are times 2^24, as in pairs_at.
struct FloatPair {
  Vec even, odd;
};

template <PanelFormat kFormat>
SINKSTREAM_INLINE FloatPair floats_at(const std::byte* codes, int pair, const ValueTable& table) {
  if constexpr (kFormat.bits == 8 && has_integers(kFormat)) {
    const UintVec words = load_words(codes + pair / 2 * kPanelRows * 4);
    if (pair % 2 == 0) {
      return {as_float(float_of_byte<0>(words)), as_float(float_of_byte<1>(words))};
    }
    return {as_float(float_of_byte<2>(words)), as_float(float_of_byte<3>(words))};
  } else {
    const UintVec words = pairs_at<kFormat>(codes, pair, table);
    return {as_float(words << 16), as_float(words & 0xffff0000)};
  }
}

// Adds one unit to acc, in the order of Note: [What the tile unit adds]. `x`: floats.
template <PanelFormat kFormat>
SINKSTREAM_INLINE void add_unit_of_one(const Unit& unit, const float* x, const float* input_sums,
                                       const ValueTable& table, Vec (&acc)[1][kVectors]) {
  constexpr int kPairs = static_cast<int>(sum_cols(kFormat)) / 2;  // that are summed together
  const std::byte* const codes = codes_of<kFormat>(unit);
#pragma GCC unroll 2
  for (int part = 0; part < kUnit / 2 / kPairs; ++part) {
    Vec even{}, odd{};
#pragma GCC unroll 16
    for (int n = 0; n < kPairs; ++n) {
      const int pair = part * kPairs + n;
      const FloatPair weights = floats_at<kFormat>(codes, pair, table);
      even = fma(weights.even, broadcast(x[2 * pair]), even);
      odd = fma(weights.odd, broadcast(x[2 * pair + 1]), odd);
    }
    const Vec sum[1][kVectors] = {{Vec{} + (even + odd)}};  // 0 + −0 is 0
    add_group(PairScales<kFormat>{unit}, part, input_sums + part, sum, acc);
  }
}

template <PanelFormat kFormat>
void multiply_single_token(const Tile& tile) {
  const auto* x = static_cast<const float*>(tile.inputs.x);
  const float* sums = tile.inputs.sums;
  const ValueTable table = value_table<kFormat>();
  Vec acc[1][kVectors] = {};
  for_each_unit<kFormat>(tile.panel, tile.cols, tile.block, [&](const Unit& unit) {
    if (tile.prefetches_panel) prefetch_codes<kFormat>(unit);
    add_unit_of_one<kFormat>(unit, x, sums, table, acc);
    x += kUnit;
    sums += kUnit / sum_cols(kFormat);
  });
  write_outputs(tile, acc[0]);
}
