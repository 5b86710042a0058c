// Weights as pairs of bfloat16 along K: bfloat16 weights unchanged, codes of 8 and 4 bits as
// integers, which bfloat16 represents exactly.
#pragma once

#include "kernels/cpu/linear/tile.inl"

// A panel is one vector wide: a word holds a pair, a quad or eight codes of one row.
static_assert(kLanes == kPanelRows);

// The bfloat16 of an integer of at most eight bits.
constexpr uint32_t bf16_of(int code) {
  return __builtin_bit_cast(uint32_t, static_cast<float>(code)) >> 16;
}

// The value of each 4-bit code, twice: the lookup reads five bits, and the fifth, which belongs to
// the next code, must not matter.
template <WeightType kType>
SINKSTREAM_INLINE UintVec code_table() {
  constexpr int kFirst = kType == WeightType::kInt4 ? -8 : 0;
  UintVec table{};
  for (int i = 0; i < kLanes; ++i) {
    const int code = 2 * i % 16 + kFirst;
    table[i] = bf16_of(code) | bf16_of(code + 1) << 16;
  }
  return table;
}

// Byte kByte of each word (3 is the top one) as a float, times 2^24. It has eight bits, so the
// lower half of the float is zero.
template <int kByte>
SINKSTREAM_INLINE UintVec float_of_byte(UintVec words) {
  return as_words(to_float(reinterpret_cast<IntVec>(byte_on_top<kByte>(words))));
}

// The weights of pair `pair` in [0, 16) of a group, as bfloat16.
template <WeightType kType>
SINKSTREAM_INLINE UintVec pairs_at(const std::byte* group, int pair, UintVec table) {
  if constexpr (kType == WeightType::kBFloat16) {
    return load_words(group + pair * kPanelRows * 4);
  } else if constexpr (kType == WeightType::kInt8) {
    const UintVec words = load_words(group + pair / 2 * kPanelRows * 4);
    if (pair % 2 == 0) return float_of_byte<0>(words) >> 16 | float_of_byte<1>(words);
    return float_of_byte<2>(words) >> 16 | float_of_byte<3>(words);
  } else {
    const UintVec words = load_words(group + pair / 4 * kPanelRows * 4);
    switch (pair % 4) {
      case 0: return look_up(words, table);
      case 1: return look_up(shift_halfwords<4>(words), table);
      case 2: return look_up(shift_halfwords<8>(words), table);
      default: return look_up(shift_halfwords<12>(words), table);
    }
  }
}

// Adds a group's sums of codes to acc[t].
template <WeightType kType, int kTokens>
SINKSTREAM_INLINE void accumulate_codes(const std::byte* group, const float* group_sums,
                                        const Vec (&sum)[kTokens][kVectors],
                                        Vec (&acc)[kTokens][kVectors]) {
  accumulate_group<kType, kTokens, kType == WeightType::kInt4Minimum>(
      group, kType == WeightType::kInt8 ? 0x1p-24f : 1.0f, group_sums, sum, acc);
}
