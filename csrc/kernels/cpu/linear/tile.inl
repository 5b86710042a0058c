// linear's inner loop: one panel of 16 outputs times a tile of tokens, sums in registers.
//
// Note: [One order along K]
// A unit is 32 columns, in two chains of 16. For every output, regardless of its token's tile:
//
//   chain = weight · x of its first column, then one fma for each of the other fifteen;
//   sum   = 0 + chain 0 + chain 1, from the left;
//   acc   = acc + sum; with codes: fma(scale, sum, acc), then fma(minimum, Σx of the same columns,
//           acc).
//
// Where groups of 16 columns have scales of their own, each chain is a `sum`.
//
// One or two tokens keep both chains in flight, to hide the latency of fma; the result is the same.
// Chains of 8 would hide more of it, but adding many short chains slows a full tile down (80
// instead of 94 GFLOP/s on Zen 3, of 104).
//
// Note: [Codes in place]
// A 4-bit code is not shifted down. Masked in place and converted, it is 16^n times the code; the
// input that it multiplies was multiplied by 16^-n beforehand, which is exact. This saves one of
// three vector operations per code. The topmost code includes the sign bit and is shifted down.
// 8-bit codes are moved to the top byte with their sign, and the scale absorbs the 2^-24. Other
// codes are shifted down, and their offset is subtracted.
#pragma once

#include "kernels/cpu/linear/codes.inl"
#include "kernels/cpu/prefetch_lines.inl"

constexpr int kChainCols = 16;
constexpr int kChains = static_cast<int>(kUnit) / kChainCols;
constexpr int kRun = 8;  // contiguous inputs of one token; the codes of an int4 word

// Tokens in a tile: as many as leave registers for a weight and an input. The last tile of a call
// has the next size that holds the rest, padded.
constexpr int kMaxTile = kLanes == 4 ? 2 : kLanes == 8 ? 6 : 8;
constexpr int kTileSizes[] = {1, 2, 4, kMaxTile};  // those up to kMaxTile are in use

constexpr int tile_size(int64_t tokens) {
  for (const int size : kTileSizes) {
    if (size >= tokens || size == kMaxTile) return size;
  }
  return kMaxTile;
}

// How far ahead a tile prefetches its own weights. Measured by benchmarks/linear_bench.cc: for one
// token on Zen 3, with sixteen lanes for up to 32 on Zen 4, for up to 8 on Zen 5. The tile unit's
// bfloat16 weights use it too; its codes: see linear/single_token.inl.
constexpr int64_t prefetch_distance(const PanelFormat& format, bool to_l1) {
  if (kLanes < 16) return 4096;
  if (to_l1) return 8192;
  if (format.number == Number::kBFloat16) return 4096;
  return is_coded(format) ? 8192 : 16384;
}

// Prefetches what is `distance` bytes after this unit. The units of a block take equal shares; of
// an open block, its scales add a line to each.
template <PanelFormat kFormat, bool kToL1>
SINKSTREAM_INLINE void prefetch_unit_to(const Unit& unit, int64_t distance) {
  if constexpr (is_open(kFormat)) {
    const std::byte* const from = codes_of<kFormat>(unit) + distance;
    for (int64_t line = 0; line <= unit_bytes(kFormat); line += kLineBytes) {
      prefetch_to<kToL1>(from + line);
    }
    return;
  }
  constexpr int64_t kShare = divide_up(block_bytes(kFormat), block_cols(kFormat, kUnit) / kUnit);
  const std::byte* const from = unit.block + unit.index * kShare + distance;
  for (int64_t line = 0; line < kShare; line += kLineBytes) prefetch_to<kToL1>(from + line);
}

// The same for a tile of kTokens tokens. A single token with bfloat16 weights only waits for
// memory; there L2 is 1.03 times as fast on Zen 5, too.
template <PanelFormat kFormat, int kTokens>
SINKSTREAM_INLINE void prefetch_unit(const Unit& unit) {
  constexpr bool kWaits = kLanes == 16 && kFormat.number == Number::kBFloat16 && kTokens == 1;
  if (!kWaits && prefetches_to_l1()) {
    prefetch_unit_to<kFormat, true>(unit, prefetch_distance(kFormat, true));
  } else {
    prefetch_unit_to<kFormat, false>(unit, prefetch_distance(kFormat, false));
  }
}

// One panel and one tile of tokens. For the tile unit: one or two consecutive panels, and bands of
// tokens as linear/bands.inl lays them out.
struct Tile {
  const std::byte* panel;
  int64_t cols;
  int64_t block;          // PackedMatrix::block
  const void* input;      // [cols / kRun][size][kRun], as the kernel expects; cols padded to kUnit
  const float* sums;      // [cols / n][size]: Σx of n columns, sum_cols(format); read if needed
  const float* scales;    // [cols / kUnit][size]: of inputs that are integers
  const int32_t* counts;  // [cols / 16][size]: Σ integer of 16 columns, of inputs in 8 bits
  const float* bias;      // [rows], or null
  float* out;             // [tokens, out_stride]
  int64_t out_stride;
  int64_t rows;    // [1, kPanelRows]
  int64_t tokens;  // [1, size]; the rest of the tile is padding
  bool accumulate;
  bool prefetches_panel;   // a little ahead of itself; with sixteen lanes only on the tile unit
  PrefetchLines prefetch;  // of a tile of kMaxTile tokens with sixteen lanes
};
using TileKernel = void(const Tile&);

// The columns of a unit that share a scale.
constexpr int64_t sum_cols(const PanelFormat& format) {
  return has_half_groups(format) ? format.group : kUnit;
}

// A tile's prefetches for each unit.
template <PanelFormat kFormat, int kTokens>
SINKSTREAM_INLINE void prefetch_weights(bool prefetches_panel, const Unit& unit,
                                        PrefetchLines* prefetch) {
  if constexpr (kLanes < 16) {
    if (prefetches_panel) prefetch_unit<kFormat, kTokens>(unit);
  } else if constexpr (kTokens == kMaxTile) {
    prefetch->step();
  } else {  // nearly always the only tile: wasted prefetches cost less than a test per unit
    prefetch_unit<kFormat, kTokens>(unit);
  }
}

// Weights, or what codes stand for, of vector `v` in column `col` of a unit. See Note: [Codes in
// place].
template <PanelFormat kFormat>
SINKSTREAM_INLINE Vec weights_at(const std::byte* codes, int col, int v) {
  const int row = v * kLanes;
  if constexpr (kFormat.number == Number::kFloat32) {
    return load(reinterpret_cast<const float*>(codes) + col * kPanelRows + row);
  } else if constexpr (kFormat.number == Number::kFloat16) {
    return load_f16(reinterpret_cast<const f16*>(codes) + col * kPanelRows + row);
  } else if constexpr (kFormat.number == Number::kBFloat16) {
    const UintVec words = load_words(codes + (col / 2 * kPanelRows + row) * 4);
    return as_float(col % 2 == 0 ? words << 16 : words & 0xffff0000);
  } else if constexpr (kFormat.bits == 8) {
    const UintVec words = load_words(codes + (col / 4 * kPanelRows + row) * 4);
    const int byte = col % 4;
    if constexpr (kFormat.values == CodeValues::kE4m3) return e4m3_of_byte(words, byte);
    const UintVec top = byte == 0 ? words << 24 : (words << (24 - 8 * byte)) & 0xff000000;
    return to_float(reinterpret_cast<IntVec>(top));
  } else if constexpr (is_in_place(kFormat)) {  // columns in the order of a word's codes
    const UintVec words = load_words(codes + (col / 8 * kPanelRows + row) * 4);
    const int n = col % 8;
    const UintVec code = n == 7 ? words >> 28 : words & (0xfu << (4 * n));
    return to_float(reinterpret_cast<IntVec>(code));
  } else {
    return values_at<kFormat>(codes, col, v);
  }
}

// What a 1 in a sum over 8-bit codes at the top of a word stands for.
constexpr float unit_value_of(const PanelFormat& format) {
  return format.bits == 8 && has_integers(format) ? 0x1p-24f : 1.0f;
}

// Adds kTogether chains of a unit, from `first` on, to sum[t][v], or to acc[t][v] where chains have
// scales of their own. `codes` and `x` point to chain `first`, or to the unit's start if
// kFromStart.
template <PanelFormat kFormat, int kTokens, int kTogether, bool kFromStart>
SINKSTREAM_INLINE void add_chains(const Unit& unit, int first, const std::byte* codes,
                                  const float* x, const float* sums, Vec (&sum)[kTokens][kVectors],
                                  Vec (&acc)[kTokens][kVectors]) {
  const int offset = kFromStart ? first * kChainCols : 0;
  Vec chain[kTogether][kTokens][kVectors];
#pragma GCC unroll 16
  for (int n = 0; n < kChainCols; ++n) {
    // A full tile has no registers left for words of codes. They are read again for each code;
    // otherwise the compiler would keep a sum in memory.
    if constexpr (is_coded(kFormat) && kTokens == kMaxTile) asm("" : "+r"(codes));
#pragma GCC unroll 2
    for (int c = 0; c < kTogether; ++c) {
      const int col = offset + c * kChainCols + n;
      Vec weights[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) weights[v] = weights_at<kFormat>(codes, col, v);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const Vec input = broadcast(x[(col / kRun * kTokens + t) * kRun + n % kRun]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          chain[c][t][v] = n == 0 ? weights[v] * input : fma(weights[v], input, chain[c][t][v]);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int c = 0; c < kTogether; ++c) {
    if constexpr (has_half_groups(kFormat)) {
      accumulate_group<kFormat, kTokens>(unit, first + c, 1.0f, sums + (first + c) * kTokens,
                                         chain[c], acc);
    } else {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[t][v] = sum[t][v] + chain[c][t][v];
      }
    }
  }
}

// The columns of a panel after its last whole unit, of weights that are not codes.
template <PanelFormat kFormat>
SINKSTREAM_INLINE const std::byte* last_columns(const std::byte* panel, int64_t cols) {
  return panel + cols / kUnit * unit_bytes(kFormat);
}

// Adds Σ weights · x over one unit to acc[t][v].
template <PanelFormat kFormat, int kTokens>
SINKSTREAM_INLINE void add_unit(const Unit& unit, const float* x, const float* sums,
                                Vec (&acc)[kTokens][kVectors]) {
  // Chains in flight together: few tokens leave registers for both.
  constexpr int kTogether = kTokens * kVectors <= 4 ? kChains : 1;
  // Codes of three and five bits have no half that could be addressed on its own.
  constexpr bool kHasHalves = !is_coded(kFormat) || kFormat.bits % 2 == 0;
  constexpr int64_t kHalfBytes = unit_bytes(kFormat) / kChains;
  const std::byte* const codes = codes_of<kFormat>(unit);
  Vec sum[kTokens][kVectors] = {};
  if constexpr (kTogether == kChains) {
    add_chains<kFormat, kTokens, kChains, true>(unit, 0, codes, x, sums, sum, acc);
  } else if constexpr (kHasHalves) {
#pragma GCC unroll 1
    for (int first = 0; first < kChains; ++first) {
      add_chains<kFormat, kTokens, 1, false>(unit, first, codes + first * kHalfBytes,
                                             x + first * kChainCols * kTokens, sums, sum, acc);
    }
  } else {
#pragma GCC unroll 2
    for (int first = 0; first < kChains; ++first) {
      add_chains<kFormat, kTokens, 1, true>(unit, first, codes, x, sums, sum, acc);
    }
  }
  if constexpr (!is_coded(kFormat)) {
    for (int t = 0; t < kTokens; ++t) {
      for (int v = 0; v < kVectors; ++v) acc[t][v] = acc[t][v] + sum[t][v];
    }
  } else if constexpr (!has_half_groups(kFormat)) {
    accumulate_group<kFormat, kTokens, is_in_place(kFormat)>(unit, 0, unit_value_of(kFormat), sums,
                                                             sum, acc);
  }
}

template <int kTokens>
SINKSTREAM_INLINE void write_outputs(const Tile& tile, const Vec (&acc)[kTokens][kVectors]) {
  for (int t = 0; t < kTokens && t < tile.tokens; ++t) {
    for (int v = 0; v < kVectors; ++v) {
      float* out = tile.out + t * tile.out_stride + v * kLanes;
      const int64_t rows = tile.rows - v * kLanes;
      if (rows <= 0) break;
      const bool is_whole = rows >= kLanes;
      Vec result = acc[t][v];
      if (tile.bias != nullptr) {
        const float* bias = tile.bias + v * kLanes;
        result = result + (is_whole ? load(bias) : load_first(bias, rows));
      }
      if (tile.accumulate) result = result + (is_whole ? load(out) : load_first(out, rows));
      if (is_whole) {
        store(out, result);
      } else {
        store_first(out, result, rows);
      }
    }
  }
}

template <PanelFormat kFormat, int kTokens>
void multiply_tile(const Tile& tile) {
  const auto* x = static_cast<const float*>(tile.input);
  const float* sums = tile.sums;
  PrefetchLines prefetch = tile.prefetch;
  Vec acc[kTokens][kVectors] = {};
  for_each_unit<kFormat>(tile.panel, tile.cols, tile.block, [&](const Unit& unit) {
    prefetch_weights<kFormat, kTokens>(tile.prefetches_panel, unit, &prefetch);
    add_unit<kFormat, kTokens>(unit, x, sums, acc);
    x += kUnit * kTokens;
    sums += kUnit / sum_cols(kFormat) * kTokens;
  });
  if constexpr (!is_coded(kFormat)) {
    if (tile.cols % kUnit != 0) {  // one more unit, padded with zeros
      alignas(64) std::byte padded[unit_bytes(kFormat)] = {};
      __builtin_memcpy(padded, last_columns<kFormat>(tile.panel, tile.cols),
                       panel_bytes(kFormat, tile.cols % kUnit));
      add_unit<kFormat, kTokens>({padded, 0, nullptr}, x, sums, acc);
    }
  }
  write_outputs<kTokens>(tile, acc);
}
