// Weights as pairs of bfloat16 along K: bfloat16 weights unchanged, codes as what they stand for,
// which bfloat16 represents exactly.
#pragma once

#include "kernels/cpu/linear/tile.inl"

// A panel is one vector wide: a word holds codes of one row.
static_assert(kLanes == kPanelRows);

// The bfloat16 of an integer of at most eight bits.
constexpr uint32_t bf16_of(int value) {
  return __builtin_bit_cast(uint32_t, static_cast<float>(value)) >> 16;
}

// What each code stands for. The lookup reads five bits, or with codes of six bits those; bits
// beyond a code belong to others and must not matter, so shorter codes are listed repeatedly.
struct ValueTable {
  UintVec low{}, high{};
};

template <PanelFormat kFormat>
SINKSTREAM_INLINE ValueTable value_table() {
  ValueTable table;
  if constexpr (is_coded(kFormat) && kFormat.bits <= 6) {
    constexpr int kCodes = 1 << kFormat.bits;
    const auto entry = [](int code) { return bf16_of(value_of(kFormat, code % kCodes)); };
    for (int i = 0; i < kLanes; ++i) {
      table.low[i] = entry(2 * i) | entry(2 * i + 1) << 16;
      table.high[i] = entry(2 * i + 32) | entry(2 * i + 33) << 16;
    }
  }
  return table;
}

// Byte kByte of each word (3 is the top one) as a float, times 2^24. It has eight bits, so the
// lower half of the float is zero.
template <int kByte>
SINKSTREAM_INLINE UintVec float_of_byte(UintVec words) {
  return as_words(to_float(reinterpret_cast<IntVec>(byte_on_top<kByte>(words))));
}

// The weights of pair `pair` in [0, 16) of a unit, as bfloat16; 8-bit codes are times 2^24.
template <PanelFormat kFormat>
SINKSTREAM_INLINE UintVec pairs_at(const std::byte* codes, int pair, const ValueTable& table) {
  if constexpr (kFormat.number == Number::kBFloat16) {
    return load_words(codes + pair * kPanelRows * 4);
  } else if constexpr (kFormat.bits == 8) {
    const UintVec words = load_words(codes + pair / 2 * kPanelRows * 4);
    if (pair % 2 == 0) return float_of_byte<0>(words) >> 16 | float_of_byte<1>(words);
    return float_of_byte<2>(words) >> 16 | float_of_byte<3>(words);
  } else if constexpr (kFormat.bits == 6) {
    return look_up(raw_pair<6>(codes, pair, 0), table.low, table.high);
  } else {
    return look_up(raw_pair<kFormat.bits>(codes, pair, 0), table.low);
  }
}
