// linear with inputs in 8 bits: Note: [One order for integers of 8 bits]. Weights are codes.
//
// Four codes of a row and four inputs fill a lane. Codes below eight bits are left unsigned; codes
// of eight bits and values from a table get kByteOffset added, which is what `dot_bytes` of this
// table needs to read them as unsigned. A chain starts from what that adds: − offset · Σ integer.
// All sums are below 255 · 127 · 32 < 2^20.
#pragma once

#include "kernels/cpu/linear/input.inl"
#include "kernels/cpu/linear/tile.inl"

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

// Adds a group's sum to one output: Note: [One order for integers of 8 bits].
template <PanelFormat kFormat>
SINKSTREAM_INLINE void add_scaled(Vec scale, Vec minimum, IntVec sum, float input_scale,
                                  float input_sum, Vec* acc) {
  *acc = fma_once(scale * to_float(sum), broadcast(input_scale), *acc);
  if constexpr (has_minimum(kFormat)) *acc = fma_once(minimum, broadcast(input_sum), *acc);
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

template <PanelFormat kFormat, int kTokens>
SINKSTREAM_INLINE void add_unit_int8(const Unit& unit, const uint32_t* x, const float* scales,
                                     const int32_t* counts, const float* input_sums,
                                     Vec (&acc)[kTokens][kVectors]) {
  constexpr int kQuads = static_cast<int>(sum_cols(kFormat)) / 4;  // that are summed together
  constexpr int kOffset = byte_offset(kFormat);
  constexpr bool kIsHalf = has_half_groups(kFormat);
  const std::byte* codes = codes_of<kFormat>(unit);
#pragma GCC unroll 2
  for (int part = 0; part < kUnit / 4 / kQuads; ++part) {
    IntVec sum[kTokens][kVectors] = {};
    if constexpr (kOffset != 0) {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const int32_t count =
            kIsHalf ? counts[part * kTokens + t] : counts[t] + counts[kTokens + t];
        for (int v = 0; v < kVectors; ++v) sum[t][v] = broadcast_int(-kOffset * count);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < kQuads; ++n) {
      const int quad = part * kQuads + n;
      UintVec weights[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) weights[v] = code_quad<kFormat>(codes, quad, v);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const UintVec input = broadcast_word(x[(quad / 2 * kTokens + t) * 2 + quad % 2]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sum[t][v] = dot_bytes<has_signed_bytes(kFormat)>(sum[t][v], weights[v], input);
        }
      }
    }
    const int64_t group = unit.index * kUnit / kFormat.group + part;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Vec scale = scales_of<kFormat>(unit.scales, group, v);
      Vec minimum{};
      if constexpr (has_minimum(kFormat)) minimum = minima_of<kFormat>(unit.scales, group, v);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        add_scaled<kFormat>(scale, minimum, sum[t][v], scales[t], input_sums[part * kTokens + t],
                            &acc[t][v]);
      }
    }
  }
}

template <PanelFormat kFormat, int kTokens>
void multiply_tile_int8(const Tile& tile) {
  const auto* x = static_cast<const uint32_t*>(tile.input);
  const float* scales = tile.scales;
  const int32_t* counts = tile.counts;
  const float* sums = tile.sums;
  PrefetchLines prefetch = tile.prefetch;
  Vec acc[kTokens][kVectors] = {};
  for_each_unit<kFormat>(tile.panel, tile.cols, tile.block, [&](const Unit& unit) {
    prefetch_weights<kFormat, kTokens>(tile.prefetches_panel, unit, &prefetch);
    add_unit_int8<kFormat, kTokens>(unit, x, scales, counts, sums, acc);
    x += kUnit / 4 * kTokens;
    scales += kTokens;
    counts += kUnit / kHalfCols * kTokens;
    sums += kUnit / sum_cols(kFormat) * kTokens;
  });
  write_outputs<kTokens>(tile, acc);
}
