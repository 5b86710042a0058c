// Weights as pairs of bfloat16 along K: bfloat16 weights unchanged, codes as what they stand for,
// which bfloat16 represents exactly.
#pragma once

#include "kernels/cpu/linear/floats.inl"

// A panel is one vector wide: a word holds codes of one row.
static_assert(kLanes == kPanelRows);

// The bfloat16 of a number that it represents exactly.
constexpr uint32_t bf16_of(float value) { return __builtin_bit_cast(uint32_t, value) >> 16; }

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
    const auto entry = [](int code) {
      return bf16_of(static_cast<float>(value_of(kFormat, code % kCodes)));
    };
    for (int i = 0; i < kLanes; ++i) {
      table.low[i] = entry(2 * i) | entry(2 * i + 1) << 16;
      table.high[i] = entry(2 * i + 32) | entry(2 * i + 33) << 16;
    }
  } else if constexpr (kFormat.values == CodeValues::kE4m3) {
    const auto subnormal = [](int code) { return bf16_of(static_cast<float>(code % 8) * 0x1p-9f); };
    for (int i = 0; i < kLanes; ++i) {
      table.low[i] = subnormal(2 * i) | subnormal(2 * i + 1) << 16;
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

// Both FP8 codes of pair `pair`, each in its half, as bfloat16: normal numbers get the exponent of
// bfloat16, the eight subnormals are looked up.
SINKSTREAM_INLINE UintVec e4m3_pairs_at(const std::byte* codes, int pair, const ValueTable& table) {
  using Halves = uint16_t __attribute__((vector_size(4 * kLanes)));
  const UintVec words = load_words(codes + pair / 2 * kPanelRows * 4) >> (pair % 2 * 16);
  const UintVec both = (words & 0xff) | (words & 0xff00) << 8;
  const auto magnitude = reinterpret_cast<Halves>(both & 0x007f007f);
  const Halves normal = (magnitude << 4) + static_cast<uint16_t>(120 << 7);
  const auto subnormal = reinterpret_cast<Halves>(look_up(both, table.low));
  const Halves chosen = magnitude < 8 ? subnormal : normal;
  return reinterpret_cast<UintVec>(chosen) | (both & 0x00800080) << 8;
}

// The weights of pair `pair` in [0, 16) of a unit, as bfloat16; integers of 8 bits are times 2^24.
template <PanelFormat kFormat>
SINKSTREAM_INLINE UintVec pairs_at(const std::byte* codes, int pair, const ValueTable& table) {
  if constexpr (kFormat.number == Number::kBFloat16) {
    return load_words(codes + pair * kPanelRows * 4);
  } else if constexpr (kFormat.values == CodeValues::kE4m3) {
    return e4m3_pairs_at(codes, pair, table);
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

// The scales of sums over them.
template <PanelFormat kFormat>
using PairScales = UnitScales<kFormat, unit_value_of(kFormat)>;
