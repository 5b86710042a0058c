// linear's inner loop: one panel of 16 outputs times a tile of tokens, sums in registers.
//
// Note: [One order along K]
// A group is 32 columns, in two chains of 16. For every output, regardless of its token's tile:
//
//   chain = weight · x of its first column, then one fma for each of the other fifteen;
//   sum   = 0 + chain 0 + chain 1, from the left;
//   acc   = acc + sum; with codes: fma(scale, sum, acc), then fma(minimum, Σx of the group, acc).
//
// One or two tokens keep both chains in flight, to hide the latency of fma; the result is the same.
// Chains of 8 would hide more of it, but adding many short chains slows a full tile down (80
// instead of 94 GFLOP/s on Zen 3, of 104).
//
// Note: [Codes in place]
// A 4-bit code is not shifted down. Masked in place and converted, it is 16^n times the code; the
// input that it multiplies was multiplied by 16^-n beforehand, which is exact. This saves one of
// three vector operations per code. The topmost code includes the sign bit and is shifted down.
// 8-bit codes are moved to the top byte with their sign, and the scale absorbs the 2^-24.
#pragma once

#include "kernels/cpu/prefetch_lines.inl"

constexpr int kVectors = static_cast<int>(kPanelRows) / kLanes;  // of one panel
constexpr int kChainCols = 16;
constexpr int kChains = static_cast<int>(kGroup) / kChainCols;
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
constexpr int64_t prefetch_distance(WeightType type, bool to_l1) {
  if (kLanes < 16) return 4096;
  if (to_l1) return 8192;
  if (type == WeightType::kBFloat16) return 4096;
  return is_quantized(type) ? 8192 : 16384;
}

// Bytes of kGroup columns of a panel.
constexpr int64_t group_bytes(WeightType type) {
  return is_quantized(type) ? block_bytes(type) : panel_bytes(type, kGroup);
}

// Prefetches the group that is `distance` bytes after this one.
template <WeightType kType, bool kToL1>
SINKSTREAM_INLINE void prefetch_group_to(const std::byte* group, int64_t distance) {
  for (int64_t line = 0; line < group_bytes(kType); line += kLineBytes) {
    prefetch_to<kToL1>(group + distance + line);
  }
}

// The same for a tile of kTokens tokens. A single token with bfloat16 weights only waits for
// memory; there L2 is 1.03 times as fast on Zen 5, too.
template <WeightType kType, int kTokens>
SINKSTREAM_INLINE void prefetch_group(const std::byte* group) {
  constexpr bool kWaits = kLanes == 16 && kType == WeightType::kBFloat16 && kTokens == 1;
  if (!kWaits && prefetches_to_l1()) {
    prefetch_group_to<kType, true>(group, prefetch_distance(kType, true));
  } else {
    prefetch_group_to<kType, false>(group, prefetch_distance(kType, false));
  }
}

// Bytes of kRun columns of a panel, without scales.
constexpr int64_t run_bytes(WeightType type) {
  switch (type) {
    case WeightType::kFloat32: return kRun * kPanelRows * 4;
    case WeightType::kFloat16:
    case WeightType::kBFloat16: return kRun * kPanelRows * 2;
    case WeightType::kInt8: return kRun * kPanelRows;
    default: return kRun * kPanelRows / 2;
  }
}

// One panel and one tile of tokens. For the tile unit: one or two consecutive panels, and bands of
// tokens as linear/bands.inl lays them out.
struct Tile {
  const std::byte* panel;
  int64_t cols;
  const void* input;    // [cols / kRun][size][kRun], as the kernel expects; cols padded to kGroup
  const float* sums;    // [cols / kGroup][size]: Σx of each group
  const float* scales;  // [cols / kGroup][size]: of inputs in 16 bits
  const float* bias;    // [rows], or null
  float* out;           // [tokens, out_stride]
  int64_t out_stride;
  int64_t rows;    // [1, kPanelRows]
  int64_t tokens;  // [1, size]; the rest of the tile is padding
  bool accumulate;
  bool prefetches_panel;   // a little ahead of itself; with sixteen lanes only on the tile unit
  PrefetchLines prefetch;  // of a tile of kMaxTile tokens with sixteen lanes
};
using TileKernel = void(const Tile&);

// A tile's prefetches for each group.
template <WeightType kType, int kTokens>
SINKSTREAM_INLINE void prefetch_weights(bool prefetches_panel, const std::byte* group,
                                        PrefetchLines* prefetch) {
  if constexpr (kLanes < 16) {
    if (prefetches_panel) prefetch_group<kType, kTokens>(group);
  } else if constexpr (kTokens == kMaxTile) {
    prefetch->step();
  } else {  // nearly always the only tile: wasted prefetches cost less than a test per group
    prefetch_group<kType, kTokens>(group);
  }
}

// Weights of vector `v` in column `col` of a group. See Note: [Codes in place].
template <WeightType kType>
SINKSTREAM_INLINE Vec weights_at(const std::byte* group, int col, int v) {
  const int row = v * kLanes;
  if constexpr (kType == WeightType::kFloat32) {
    return load(reinterpret_cast<const float*>(group) + col * kPanelRows + row);
  } else if constexpr (kType == WeightType::kFloat16) {
    return load_f16(reinterpret_cast<const f16*>(group) + col * kPanelRows + row);
  } else if constexpr (kType == WeightType::kBFloat16) {
    const UintVec words = load_words(group + (col / 2 * kPanelRows + row) * 4);
    return as_float(col % 2 == 0 ? words << 16 : words & 0xffff0000);
  } else if constexpr (kType == WeightType::kInt8) {
    const UintVec words = load_words(group + (col / 4 * kPanelRows + row) * 4);
    const int byte = col % 4;
    const UintVec top = byte == 0 ? words << 24 : (words << (24 - 8 * byte)) & 0xff000000;
    return to_float(reinterpret_cast<IntVec>(top));
  } else {  // columns in the order of a word's codes
    const UintVec words = load_words(group + (col / 8 * kPanelRows + row) * 4);
    const int n = col % 8;
    const UintVec code = n == 7 ? words >> 28 : words & (0xfu << (4 * n));
    return to_float(reinterpret_cast<IntVec>(code));
  }
}

// Adds Σ weights · x over one group to sum[t][v].
template <WeightType kType, int kTokens>
SINKSTREAM_INLINE void sum_group(const std::byte* group, const float* x,
                                 Vec (&sum)[kTokens][kVectors]) {
  // Chains in flight together: few tokens leave registers for both.
  constexpr int kTogether = kTokens * kVectors <= 4 ? kChains : 1;
#pragma GCC unroll 1
  for (int first = 0; first < kChains; first += kTogether) {
    Vec chain[kTogether][kTokens][kVectors];
#pragma GCC unroll 16
    for (int n = 0; n < kChainCols; ++n) {
      // A full tile has no registers left for words of codes. They are read again for each code;
      // otherwise the compiler would keep a sum in memory.
      if constexpr (is_quantized(kType) && kTokens == kMaxTile) asm("" : "+r"(group));
#pragma GCC unroll 2
      for (int c = 0; c < kTogether; ++c) {
        Vec weights[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          weights[v] = weights_at<kType>(group, c * kChainCols + n, v);
        }
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const int run = (c * kChainCols + n) / kRun * kTokens + t;
          const Vec input = broadcast(x[run * kRun + n % kRun]);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            chain[c][t][v] = n == 0 ? weights[v] * input : fma(weights[v], input, chain[c][t][v]);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int c = 0; c < kTogether; ++c) {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[t][v] = sum[t][v] + chain[c][t][v];
      }
    }
    group += kChainCols / kRun * run_bytes(kType);
    x += kChainCols * kTokens;
  }
}

// Adds the sum of one group to acc[t][v]: times its scale, plus its minimum or the codes' offset of
// −8.
template <WeightType kType, int kTokens, bool kHasOffset>
SINKSTREAM_INLINE void accumulate_group(const std::byte* group, float unit, const float* group_sums,
                                        const Vec (&sum)[kTokens][kVectors],
                                        Vec (&acc)[kTokens][kVectors]) {
  const auto* scales = reinterpret_cast<const f16*>(group + block_bytes(kType)) -
                       kPanelRows * (kType == WeightType::kInt4Minimum ? 2 : 1);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Vec scale = load_f16(scales + v * kLanes);
    Vec offset{};
    if constexpr (kType == WeightType::kInt4Minimum) {
      offset = load_f16(scales + kPanelRows + v * kLanes);
    } else if constexpr (kHasOffset) {
      offset = scale * broadcast(-8.0f);
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      acc[t][v] = fma(scale * broadcast(unit), sum[t][v], acc[t][v]);
      if constexpr (kHasOffset) acc[t][v] = fma(offset, broadcast(group_sums[t]), acc[t][v]);
    }
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

template <WeightType kType, int kTokens>
SINKSTREAM_INLINE void add_group(const std::byte* group, const float* x, const float* group_sums,
                                 Vec (&acc)[kTokens][kVectors]) {
  Vec sum[kTokens][kVectors] = {};
  sum_group<kType, kTokens>(group, x, sum);
  if constexpr (is_quantized(kType)) {
    accumulate_group<kType, kTokens, kType != WeightType::kInt8>(
        group, kType == WeightType::kInt8 ? 0x1p-24f : 1.0f, group_sums, sum, acc);
  } else {
    for (int t = 0; t < kTokens; ++t) {
      for (int v = 0; v < kVectors; ++v) acc[t][v] = acc[t][v] + sum[t][v];
    }
  }
}

template <WeightType kType, int kTokens>
void multiply_tile(const Tile& tile) {
  constexpr int64_t kStep = kGroup * kTokens;
  const auto* x = static_cast<const float*>(tile.input);
  const float* sums = tile.sums;
  const std::byte* group = tile.panel;
  PrefetchLines prefetch = tile.prefetch;
  Vec acc[kTokens][kVectors] = {};
  for (int64_t left = tile.cols / kGroup; left > 0; --left) {
    prefetch_weights<kType, kTokens>(tile.prefetches_panel, group, &prefetch);
    add_group<kType, kTokens>(group, x, sums, acc);
    group += group_bytes(kType);
    x += kStep;
    sums += kTokens;
  }
  if constexpr (!is_quantized(kType)) {
    if (tile.cols % kGroup != 0) {  // one more group, padded with zeros
      alignas(64) std::byte padded[group_bytes(kType)] = {};
      __builtin_memcpy(padded, group, panel_bytes(kType, tile.cols % kGroup));
      add_group<kType, kTokens>(padded, x, sums, acc);
    }
  }
  write_outputs<kTokens>(tile, acc);
}
