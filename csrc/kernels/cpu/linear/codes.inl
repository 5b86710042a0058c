// linear: the codes and scales of a panel's units, as vectors. `pair` is a constant wherever these
// functions are inlined.
#pragma once

constexpr int kVectors = static_cast<int>(kPanelRows) / kLanes;  // of one panel

// Where a unit of a panel is.
struct Unit {
  const std::byte* block;
  int64_t index;            // in its block
  const std::byte* scales;  // of its block
};

template <PanelFormat kFormat>
SINKSTREAM_INLINE const std::byte* codes_of(const Unit& unit) {
  return unit.block + unit.index * unit_bytes(kFormat);
}

// The unit that is `number` units after the start of `panel`. `open`: PackedMatrix::block.
template <PanelFormat kFormat>
SINKSTREAM_INLINE Unit unit_at(const std::byte* panel, int64_t open, int64_t number) {
  const int64_t units = block_cols(kFormat, open) / kUnit;
  const std::byte* const block = panel + number / units * block_bytes(kFormat, open);
  return {block, number % units, block + block_code_bytes(kFormat, open)};
}

// Calls `body` for each whole unit of a panel, in order. `open`: PackedMatrix::block.
template <PanelFormat kFormat, typename Body>
SINKSTREAM_INLINE void for_each_unit(const std::byte* panel, int64_t cols, int64_t open,
                                     const Body& body) {
  for (int64_t left = cols / block_cols(kFormat, open); left > 0; --left) {
    const std::byte* const scales = panel + block_code_bytes(kFormat, open);
    for (int64_t index = 0; index < block_cols(kFormat, open) / kUnit; ++index) {
      body(Unit{panel, index, scales});
    }
    panel += block_bytes(kFormat, open);
  }
}

// Whether fma and int16 kernels leave the codes where they are, with their offset: Note: [Codes in
// place].
constexpr bool is_in_place(const PanelFormat& format) {
  return format.bits == 4 && format.values == CodeValues::kInteger;
}

SINKSTREAM_INLINE UintVec code_word(const std::byte* codes, int word, int v) {
  return load_words(codes + (word * kPanelRows + v * kLanes) * 4);
}

// Both codes of a pair, each in its half, in the bits from kFrom on; the others are undefined.
template <int kBits, int kFrom = 0>
SINKSTREAM_INLINE UintVec raw_pair(const std::byte* codes, int pair, int v) {
  if constexpr (kBits == 6) {
    const int first = pair / 8 * 3, j = pair % 8;
    if (j < 6) return shift_halfwords(code_word(codes, first + j % 3, v), j / 3 * 6 - kFrom);
    const UintVec high = shift_halfwords(code_word(codes, first + 2, v), (j == 6 ? 8 : 10) - kFrom);
    const UintVec low = shift_halfwords(code_word(codes, first + j - 6, v), 12 - kFrom);
    return select_bits(0x00300030u << kFrom, high, low);
  } else {
    constexpr int kPerHalf = 16 / kBits;
    if (pair < kPerHalf * kBits) {
      return shift_halfwords(code_word(codes, pair / kPerHalf, v), pair % kPerHalf * kBits - kFrom);
    }
    UintVec code = shift_halfwords(code_word(codes, 0, v), 15 - kFrom);
#pragma GCC unroll 8
    for (int word = 1; word < kBits; ++word) {
      const UintVec bits = shift_halfwords(code_word(codes, word, v), 15 - word - kFrom);
      code = select_bits((((1u << word) - 1) * 0x10001) << kFrom, code, bits);
    }
    return code;
  }
}

// What both codes of a pair stand for, as 16-bit integers.
template <PanelFormat kFormat>
SINKSTREAM_INLINE PairVec pair_values(const std::byte* codes, int pair, int v) {
  const UintVec raw = raw_pair<kFormat.bits>(codes, pair, v);
  if constexpr (kFormat.values == CodeValues::kIq4Nl) {
    return look_up_values(raw, kIq4NlValues);
  } else if constexpr (kFormat.values == CodeValues::kFp4) {
    return look_up_values(raw, kFp4Values);
  } else {
    constexpr uint32_t kMask = (1u << kFormat.bits) - 1;
    const auto values = reinterpret_cast<PairVec>(raw & kMask * 0x10001);
    if constexpr (kFormat.offset == 0) return values;
    return values - static_cast<int16_t>(kFormat.offset);
  }
}

// What the codes of one column of a unit stand for.
template <PanelFormat kFormat>
SINKSTREAM_INLINE Vec values_at(const std::byte* codes, int col, int v) {
  const auto pair = reinterpret_cast<IntVec>(pair_values<kFormat>(codes, col / 2, v));
  return to_float(col % 2 == 0 ? pair << 16 >> 16 : pair >> 16);
}

// Vector `vector` of the float16 that a block's scales begin with.
SINKSTREAM_INLINE Vec halves_at(const std::byte* scales, int64_t vector, int v) {
  return load_f16(reinterpret_cast<const f16*>(scales) + vector * kPanelRows + v * kLanes);
}

// Vector `vector` of the bytes that follow `halves` vectors of float16.
SINKSTREAM_INLINE IntVec bytes_at(const std::byte* scales, int64_t halves, int64_t vector, int v) {
  const auto* bytes = reinterpret_cast<const int8_t*>(scales);
  return load_bytes(bytes + (2 * halves + vector) * kPanelRows + v * kLanes);
}

// FP8 codes, in the low seven bits of words and the sign in bit `sign_bit`, as floats: normal
// numbers get the float's exponent. Subnormals get an implicit one, as normal numbers have, that is
// then subtracted; as the bits of a subnormal float they would be flushed.
SINKSTREAM_INLINE Vec e4m3_to_float(UintVec codes, int sign_bit) {
  const UintVec magnitude = codes & 0x7f;
  const auto is_subnormal = magnitude < 8;
  const UintVec exponent = broadcast_word(120u << 23);
  const UintVec bits = (magnitude << 20) + (is_subnormal ? exponent + (1u << 23) : exponent);
  const Vec implicit = is_subnormal ? broadcast(0x1p-6f) : Vec{};
  const UintVec sign = (codes << (31 - sign_bit)) & 0x80000000;
  return as_float(as_words(as_float(bits) - implicit) | sign);
}

// Byte `byte` of each word.
SINKSTREAM_INLINE Vec e4m3_of_byte(UintVec words, int byte) {
  return e4m3_to_float(words >> (8 * byte), 7);
}

// Powers of two 2^(exponent − 128). The smallest two are zeros: they are denormals, which the
// threads of a pool flush.
SINKSTREAM_INLINE Vec powers_of(IntVec exponents) {
  return as_float(exponents < 2 ? IntVec{} : (exponents - 1) << 23);
}

// Vector `v` of a block's words.
SINKSTREAM_INLINE UintVec scale_words_at(const std::byte* scales, int v) {
  return load_words(scales + v * kLanes * 4);
}

// What Scales::kZeroPoint24 and kZeroPoint32 hold, as 32 bits: the float32 scale with the zero
// point in its lowest bits.
template <PanelFormat kFormat>
SINKSTREAM_INLINE UintVec scale_and_zero_of(const std::byte* scales, int v) {
  if constexpr (kFormat.scales == Scales::kZeroPoint32) return scale_words_at(scales, v);
  const auto upper = __builtin_convertvector(load_halfwords(scales + v * kLanes * 2), UintVec);
  const auto lower =
      load_bytes(reinterpret_cast<const int8_t*>(scales) + 2 * kPanelRows + v * kLanes);
  const UintVec bits = reinterpret_cast<UintVec>(lower) & 0xff;
  return upper << 16 | (bits & 0xe0) << 8 | (bits & kMaxZeroPoint24);
}

// The zero points, in units of a code. Of 8 bits, a code is 128 less than in the file.
template <PanelFormat kFormat>
SINKSTREAM_INLINE Vec zero_points_of(const std::byte* scales, int v) {
  const auto zero = reinterpret_cast<IntVec>(scale_and_zero_of<kFormat>(scales, v) & ~kScaleBits);
  return to_float(kFormat.bits == 8 ? zero - 128 : zero);
}

// The scales of `group`, counted within the block.
template <PanelFormat kFormat>
SINKSTREAM_INLINE Vec scales_of(const std::byte* scales, int64_t group, int v) {
  if constexpr (kFormat.scales == Scales::kTwoLevel) {
    return halves_at(scales, 0, v) * to_float(bytes_at(scales, 1, group, v));
  } else if constexpr (kFormat.scales == Scales::kTwoLevelMinimum) {
    return halves_at(scales, 0, v) * to_float(bytes_at(scales, 2, 2 * group, v));
  } else if constexpr (kFormat.scales == Scales::kNibbles) {
    return halves_at(scales, 0, v) * to_float(bytes_at(scales, 2, group, v) & 15);
  } else if constexpr (kFormat.scales == Scales::kPower) {
    return powers_of(bytes_at(scales, 0, 0, v) & 255);
  } else if constexpr (kFormat.scales == Scales::kFloat) {
    return as_float(scale_words_at(scales, v));
  } else if constexpr (has_zero_point(kFormat)) {
    return as_float(scale_and_zero_of<kFormat>(scales, v) & kScaleBits);
  } else {
    return halves_at(scales, 0, v);
  }
}

// The minima of `group`, for formats that have them.
template <PanelFormat kFormat>
SINKSTREAM_INLINE Vec minima_of(const std::byte* scales, int64_t group, int v) {
  if constexpr (kFormat.scales == Scales::kTwoLevelMinimum) {
    return -(halves_at(scales, 1, v) * to_float(bytes_at(scales, 2, 2 * group + 1, v)));
  } else if constexpr (kFormat.scales == Scales::kNibbles) {
    return -(halves_at(scales, 1, v) * to_float(bytes_at(scales, 2, group, v) >> 4 & 15));
  } else if constexpr (has_zero_point(kFormat)) {
    return -(scales_of<kFormat>(scales, group, v) * zero_points_of<kFormat>(scales, v));
  } else {
    return halves_at(scales, 1, v);
  }
}

// The scales and minima of a unit's groups, `part` counted within the unit. `kUnitValue`: what a 1
// in a sum over codes stands for. kHasOffset: such a sum has the codes' offset, which is still to
// be subtracted; then that is the minimum.
template <PanelFormat kFormat, float kUnitValue = 1.0f, bool kHasOffset = false>
struct UnitScales {
  Unit unit;

  static constexpr bool is_scaled() { return is_coded(kFormat); }
  static constexpr bool has_minima() {
    return has_minimum(kFormat) || (kHasOffset && kFormat.offset != 0);
  }
  SINKSTREAM_INLINE int64_t group(int64_t part) const {
    return unit.index * kUnit / kFormat.group + part;
  }
  SINKSTREAM_INLINE Vec unscaled(int64_t part, int v) const {
    return scales_of<kFormat>(unit.scales, group(part), v);
  }
  SINKSTREAM_INLINE Vec scale(int64_t part, int v) const {
    return unscaled(part, v) * broadcast(kUnitValue);
  }
  SINKSTREAM_INLINE Vec minimum(int64_t part, int v) const {
    static_assert(!has_minimum(kFormat) || kFormat.offset == 0, "one of them would be lost");
    if constexpr (has_minimum(kFormat)) return minima_of<kFormat>(unit.scales, group(part), v);
    return unscaled(part, v) * broadcast(static_cast<float>(-kFormat.offset));
  }
};

// Adds the sum over one group's columns of a unit to acc[t][v]: times its scale, plus its minimum.
// `input_sums`: Σx of the same columns.
template <typename Scales, int kTokens>
SINKSTREAM_INLINE void add_group(const Scales& scales, int64_t part, const float* input_sums,
                                 const Vec (&sum)[kTokens][kVectors],
                                 Vec (&acc)[kTokens][kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    if (!scales.is_scaled()) {
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) acc[t][v] = acc[t][v] + sum[t][v];
      continue;
    }
    const Vec scale = scales.scale(part, v);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) acc[t][v] = fma(scale, sum[t][v], acc[t][v]);
    if (!scales.has_minima()) continue;
    const Vec minimum = scales.minimum(part, v);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      acc[t][v] = fma(minimum, broadcast(input_sums[t]), acc[t][v]);
    }
  }
}
