// linear with inputs in 8 bits: Note: [One order for integers of 8 bits]. Weights are codes.
//
// Four codes of a row and four inputs fill a lane. Codes below eight bits are left unsigned; codes
// of eight bits and values from a table get kByteOffset added, which is what `dot_bytes` of this
// table needs to read them as unsigned. A chain starts from what that adds: − offset · Σ integer.
// All sums are below 255 · 127 · 32 < 2^20.
#pragma once

#include "kernels/cpu/linear/multiply.inl"

constexpr bool has_signed_bytes(const PanelFormat& format) {
  return format.bits == 8 || format.values != CodeValues::kInteger;
}

// What a byte of `code_quad` is more than the value that it stands for.
constexpr int byte_offset(const PanelFormat& format) {
  return has_signed_bytes(format) ? kByteOffset : format.offset;
}

// The values of a table of codes, as `dot_bytes` reads them.
struct ByteTable {
  int bytes[16];
};
template <int kAdded>
constexpr ByteTable byte_table(const int (&values)[16]) {
  ByteTable table{};
  for (int i = 0; i < 16; ++i) table.bytes[i] = values[i] + kAdded;
  return table;
}

// Adds a group's sum to one output, without its minimum: Note: [One order for integers of 8 bits].
SINKSTREAM_INLINE Vec add_scaled(Vec scale, IntVec sum, float input_scale, Vec acc) {
  return fma_once(scale * to_float(sum), broadcast(input_scale), acc);
}

// Four codes of each row, as bytes; `quad` in [0, 8) of a unit. 8-bit codes are in order, others as
// in Form::kPairedBytes.
template <PanelFormat kFormat>
SINKSTREAM_INLINE UintVec code_quad(const std::byte* codes, int quad, int v) {
  if constexpr (kFormat.bits == 8) {
    return code_word(codes, quad, v) ^ (kByteOffset * 0x01010101u);
  } else if constexpr (kFormat.bits == 4) {
    const UintVec words = code_word(codes, quad / 2, v);
    const UintVec nibbles = (quad % 2 == 0 ? words : words >> 4) & 0x0f0f0f0f;
    if constexpr (kFormat.values == CodeValues::kIq4Nl) {
      return look_up_bytes(nibbles, byte_table<kByteOffset>(kIq4NlValues).bytes);
    } else if constexpr (kFormat.values == CodeValues::kFp4) {
      return look_up_bytes(nibbles, byte_table<kByteOffset>(kFp4Values).bytes);
    } else {
      return nibbles;
    }
  } else {
    constexpr uint32_t kMask = ((1u << kFormat.bits) - 1) * 0x00010001;
    const int pair = quad / 2 * 4 + quad % 2;
    return (raw_pair<kFormat.bits>(codes, pair, v) & kMask) |
           (raw_pair<kFormat.bits, 8>(codes, pair + 2, v) & kMask << 8);
  }
}

template <>
struct Multiplier<Way::kInt8> : AnyMultiplier {
  static constexpr int kCols = 4;
  using Sum = IntVec;
  template <PanelFormat kFormat>
  using Scales = UnitScales<kFormat>;

  static constexpr bool has_signed_bytes(const PanelFormat& format) {
    return ::sinkstream::has_signed_bytes(format);
  }
  static constexpr int offset_of(const PanelFormat& format) { return byte_offset(format); }
  template <typename Weights, int kSums>
  static constexpr int chains() {
    return 1;
  }
  template <typename Weights, int kSums>
  static constexpr Step order(int n) {
    return {.index = n, .chain = 0};
  }
  template <PanelFormat kFormat, bool kInPlace>
  SINKSTREAM_INLINE static UintVec weights_at(const std::byte* codes, int step, int v, NoTable) {
    return code_quad<kFormat>(codes, step, v);
  }
  template <typename Weights, int kTokens>
  SINKSTREAM_INLINE static void start(const Weights& weights, const TileInputs& inputs, int part,
                                      IntVec (&chains)[1][kTokens][kVectors]) {
    if (weights.offset == 0) return;
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const int32_t* const counts = inputs.counts + t;
      const int32_t count =
          Weights::kGroup < kUnit ? counts[part * kTokens] : counts[0] + counts[kTokens];
      for (int v = 0; v < kVectors; ++v) chains[0][t][v] = broadcast_int(-weights.offset * count);
    }
  }
  template <typename Weights>
  SINKSTREAM_INLINE static IntVec multiply(IntVec sum, UintVec weights, UintVec input, bool) {
    return dot_bytes<Weights::kSignedBytes>(sum, weights, input);
  }
  template <typename Weights, int kTokens>
  SINKSTREAM_INLINE static void add(const Weights& weights, const TileInputs& inputs, int part,
                                    const IntVec (&chains)[1][kTokens][kVectors],
                                    Vec (&acc)[kTokens][kVectors]) {
    const float* const sums = inputs.sums + part * kTokens;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Vec scale = weights.scales.scale(part, v);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        acc[t][v] = add_scaled(scale, chains[0][t][v], inputs.scales[t], acc[t][v]);
      }
      if (!weights.scales.has_minima()) continue;
      const Vec minimum = weights.scales.minimum(part, v);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t)
        acc[t][v] = fma_once(minimum, broadcast(sums[t]), acc[t][v]);
    }
  }
};
