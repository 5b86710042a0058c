// A panel of 16 outputs times a tile of tokens: the tiles' sizes, a kernel's arguments, what it
// prefetches and writes. What it computes: linear/multiply.inl.
#pragma once

#include "kernels/cpu/linear/codes.inl"
#include "kernels/cpu/prefetch_lines.inl"

constexpr int kRun = 8;  // contiguous inputs of one token; the codes of an int4 word

// The instructions that multiply.
enum class Way {
  kFma,        // floats: linear/floats.inl
  kDots,       // pairs of bfloat16: linear/dot.inl
  kSplitDots,  // the same bits, with two fma for each dot product: linear/dot.inl
  kInt16,      // integers of 16 bits: linear/int16.inl
  kInt8,       // integers of 8 bits, and no weights but codes: linear/int8.inl
};

// The way of one format in a call whose way is `way`.
constexpr Way way_of(Way way, const PanelFormat& format) {
  const bool is_wide = format.number == Number::kFloat32 || format.number == Number::kFloat16;
  if ((way == Way::kDots || way == Way::kSplitDots) && is_wide) return Way::kFma;
  return way == Way::kInt16 && !has_integers(format) ? Way::kFma : way;
}

// Tokens in a tile: as many as leave registers for a weight and an input. The last tile of a call
// has the next size that holds the rest, padded.
constexpr int kMaxTile = kLanes == 4 ? 2 : kLanes == 8 ? 6 : 8;
constexpr int kTileSizes[] = {1, 2, 4, kMaxTile};  // those up to kMaxTile are in use
constexpr int kSizeCount = kMaxTile == 2 ? 2 : 4;

// The index of the smallest size that holds `tokens`, or of the last one.
constexpr int size_index(int64_t tokens) {
  int index = 0;
  while (index < kSizeCount - 1 && kTileSizes[index] < tokens) ++index;
  return index;
}

constexpr int tile_size(int64_t tokens) { return kTileSizes[size_index(tokens)]; }

// How far ahead a kernel prefetches its weights. Measured by benchmarks/linear_bench.cc: for one
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

// The same at prefetch_distance. A single token with bfloat16 weights only waits for memory; there
// L2 is 1.03 times as fast on Zen 5, too.
template <PanelFormat kFormat, bool kIsAlone>
SINKSTREAM_INLINE void prefetch_unit(const Unit& unit) {
  constexpr bool kWaits = kLanes == 16 && kFormat.number == Number::kBFloat16 && kIsAlone;
  if (!kWaits && prefetches_to_l1()) {
    prefetch_unit_to<kFormat, true>(unit, prefetch_distance(kFormat, true));
  } else {
    prefetch_unit_to<kFormat, false>(unit, prefetch_distance(kFormat, false));
  }
}

// The inputs of a tile, from some unit on. A unit has kUnit columns; `n`: sum_cols(format).
struct TileInputs {
  const void* x;          // [cols / kRun][size][kRun], as the kernel expects; cols padded to kUnit
  const float* sums;      // [cols / n][size]: Σx of n columns; read if needed
  const float* scales;    // [cols / kUnit][size]: of inputs that are integers
  const int32_t* counts;  // [cols / 16][size]: Σ integer of 16 columns, of inputs in 8 bits
};

// One panel and some tokens: one or many tiles, one after the other. For the tile unit: one or two
// consecutive panels, and bands of tokens as linear/bands.inl lays them out.
struct Tile {
  const std::byte* panel;
  int64_t cols;
  int64_t block;      // PackedMatrix::block
  TileInputs inputs;  // of the first tile
  const float* bias;  // [rows], or null
  float* out;         // [tokens, out_stride]
  int64_t out_stride;
  int64_t rows;    // [1, kPanelRows]
  int64_t tokens;  // at least 1; the rest of the last tile is padding
  bool accumulate;
  bool prefetches_panel;          // a little ahead of itself
  int64_t panel_bytes = 0;        // read with several tiles only
  int64_t prefetch_distance = 0;  // likewise
};
using TileKernel = void(const Tile&);

// The columns of a unit that share a scale.
constexpr int64_t sum_cols(const PanelFormat& format) {
  return has_half_groups(format) ? format.group : kUnit;
}

// Writes the outputs of the first token.
SINKSTREAM_INLINE void write_outputs(const Tile& tile, const Vec (&acc)[kVectors]) {
  for (int v = 0; v < kVectors; ++v) {
    float* out = tile.out + v * kLanes;
    const int64_t rows = tile.rows - v * kLanes;
    if (rows <= 0) break;
    const bool is_whole = rows >= kLanes;
    Vec result = acc[v];
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

// Writes the outputs of all tokens, token by token from memory: only unrolled loops index vectors
// of sums, which then stay in registers.
SINKSTREAM_INLINE void write_rows(Tile tile, const float (*sums)[kPanelRows]) {
  for (int64_t t = 0; t < tile.tokens; ++t, tile.out += tile.out_stride) {
    Vec row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = load(sums[t] + v * kLanes);
    write_outputs(tile, row);
  }
}
