// linear: one panel of 16 outputs times a tile of tokens at a time, sums in registers.
//
// Note: [One order along K]
// Columns come in groups of 32, a group in two chains of 16. For every output, whatever tile its
// token is in:
//
//   chain = weight · x of its first column, then one fma for each of the other fifteen;
//   sum   = 0 + chain 0 + chain 1, from the left;
//   acc   = acc + sum; with codes: fma(scale, sum, acc), then fma(minimum, Σx of the group, acc).
//
// A token or two keep both chains in flight, which no single output can see: they must hide the
// latency of fma. Chains of 8 would hide more of it, but sums of many short chains slow a whole
// tile down (80 instead of 94 GFLOP/s on Zen 3, of 104).
//
// Note: [Codes in place]
// A 4-bit code is not shifted down: masked where it stands and converted, it is 16^n times the
// code, and the input that it meets was multiplied by 16^-n beforehand, which is exact. That
// saves one of three vector operations for each code. The topmost has the sign bit and is shifted
// down. 8-bit codes are moved to the top byte, sign and all, and the scale takes the 2^-24.

constexpr int kVectors = static_cast<int>(kPanelRows) / kLanes;  // of one panel
constexpr int kChainCols = 16;
constexpr int kChains = static_cast<int>(kGroup) / kChainCols;
constexpr int kRun = 8;  // inputs of one token that lie together; the codes of an int4 word

// Tokens in a tile: as many as leave registers for a weight and an input. The last tile of a call
// is of the next size that holds what is left, padded.
constexpr int kMaxTile = kLanes == 4 ? 2 : kLanes == 8 ? 6 : 8;
constexpr int kTileSizes[] = {1, 2, 4, kMaxTile};  // those up to kMaxTile are in use

// How far ahead one token alone asks for weights. See tests/bench/linear_bench.cc.
constexpr int64_t kPrefetchBytes = 4096;

// Bytes of kGroup columns of a panel.
constexpr int64_t group_bytes(WeightType type) {
  return is_quantized(type) ? block_bytes(type) : panel_bytes(type, kGroup);
}

// Bytes of kRun columns of a panel, scales aside.
constexpr int64_t run_bytes(WeightType type) {
  switch (type) {
    case WeightType::kFloat32: return kRun * kPanelRows * 4;
    case WeightType::kFloat16:
    case WeightType::kBFloat16: return kRun * kPanelRows * 2;
    case WeightType::kInt8: return kRun * kPanelRows;
    default: return kRun * kPanelRows / 2;
  }
}

// One panel and one tile of tokens.
struct Tile {
  const std::byte* panel;
  int64_t cols;
  const void* input;   // [cols / kRun][size][kRun], as the kernel wants it; cols padded to kGroup
  const float* sums;   // [cols / kGroup][size]: Σx of each group
  const float* bias;   // [rows], or null
  float* out;          // [tokens, out_stride]
  int64_t out_stride;
  int64_t rows;        // [1, kPanelRows]
  int64_t tokens;      // [1, size]; the rest of the tile is padding
  bool accumulate;
};
using TileKernel = void(const Tile&);

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
  // Chains in flight together: a few tokens leave registers for both.
  constexpr int kTogether = kTokens * kVectors <= 4 ? kChains : 1;
#pragma GCC unroll 1
  for (int first = 0; first < kChains; first += kTogether) {
    Vec chain[kTogether][kTokens][kVectors];
#pragma GCC unroll 16
    for (int n = 0; n < kChainCols; ++n) {
      // A full tile leaves no registers for words of codes: they are read again for each code,
      // or the compiler would keep a sum in memory instead.
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
            chain[c][t][v] =
                n == 0 ? weights[v] * input : fma(weights[v], input, chain[c][t][v]);
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

// acc[t][v] takes the sum of one group: its scale, and its minimum or the codes' offset of −8.
template <WeightType kType, int kTokens, bool kHasOffset>
SINKSTREAM_INLINE void take_group(const std::byte* group, float unit, const float* group_sums,
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
#pragma GCC unroll 8
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
  if constexpr (kTokens == 1) {
    for (int64_t line = 0; line < group_bytes(kType); line += 64) {
      prefetch(group + kPrefetchBytes + line);
    }
  }
  Vec sum[kTokens][kVectors] = {};
  sum_group<kType, kTokens>(group, x, sum);
  if constexpr (is_quantized(kType)) {
    take_group<kType, kTokens, kType != WeightType::kInt8>(
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
  Vec acc[kTokens][kVectors] = {};
  for (int64_t left = tile.cols / kGroup; left > 0; --left) {
    add_group<kType, kTokens>(group, x, sums, acc);
    group += group_bytes(kType);
    x += kStep;
    sums += kTokens;
  }
  if constexpr (!is_quantized(kType)) {
    if (tile.cols % kGroup != 0) {  // a whole group again, filled up with zeros
      alignas(64) std::byte padded[group_bytes(kType)] = {};
      __builtin_memcpy(padded, group, panel_bytes(kType, tile.cols % kGroup));
      add_group<kType, kTokens>(padded, x, sums, acc);
    }
  }
  write_outputs<kTokens>(tile, acc);
}

// The same with bfloat16 dot instructions, in linear_dot.inl; only tables that have them use it.
template <WeightType kType, int kTokens>
void multiply_tile_dot(const Tile& tile);

// How a kernel wants its input laid out.
enum class Form {
  kPlain,   // [cols / kRun][size][kRun] floats
  kScaled,  // the same in the order of an int4 word's codes, multiplied by 16^-n
  kPairs,   // [cols / kRun][size][kRun / 2] pairs of bfloat16
};

template <bool kDots>
constexpr Form form_of(WeightType type) {
  const bool is_wide = type == WeightType::kFloat32 || type == WeightType::kFloat16;
  if (kDots && !is_wide) return Form::kPairs;
  return type >= WeightType::kInt4 ? Form::kScaled : Form::kPlain;
}

template <bool kDots, WeightType kType, int kIndex = 0>
TileKernel* kernel_of_size(int size) {
  constexpr int kSize = kTileSizes[kIndex];
  if (size == kSize) {
    if constexpr (form_of<kDots>(kType) == Form::kPairs) return multiply_tile_dot<kType, kSize>;
    return multiply_tile<kType, kSize>;
  }
  if constexpr (kSize < kMaxTile) return kernel_of_size<kDots, kType, kIndex + 1>(size);
  return nullptr;
}

template <bool kDots>
TileKernel* kernel_of(WeightType type, int size) {
  switch (type) {
    case WeightType::kFloat32: return kernel_of_size<kDots, WeightType::kFloat32>(size);
    case WeightType::kFloat16: return kernel_of_size<kDots, WeightType::kFloat16>(size);
    case WeightType::kBFloat16: return kernel_of_size<kDots, WeightType::kBFloat16>(size);
    case WeightType::kInt8: return kernel_of_size<kDots, WeightType::kInt8>(size);
    case WeightType::kInt4: return kernel_of_size<kDots, WeightType::kInt4>(size);
    case WeightType::kInt4Minimum: return kernel_of_size<kDots, WeightType::kInt4Minimum>(size);
  }
  return nullptr;
}

// The inputs of one call in LinearArgs::scratch. Tile i holds the tokens from i · kMaxTile on;
// the last one may be smaller. All regions are indexed by first token, then as in Tile.
struct Inputs {
  int64_t cols;  // padded to kGroup
  float* plain;  // null if no part wants it
  float* other;  // kScaled or kPairs, null likewise
  float* sums;
};

template <bool kDots>
Inputs place_inputs(const LinearArgs& args) {
  const int64_t cols = (args.cols + kGroup - 1) / kGroup * kGroup;
  const int64_t region = (args.tokens + kMaxTile) * cols;
  float* scratch = reinterpret_cast<float*>(args.scratch);
  Inputs inputs = {cols, nullptr, nullptr, scratch + 2 * region};
  for (int64_t i = 0; i < args.part_count; ++i) {
    if (form_of<kDots>(args.parts[i].weights.type) == Form::kPlain) {
      inputs.plain = scratch;
    } else {
      inputs.other = scratch + region;
    }
  }
  return inputs;
}

int tile_size(int64_t tokens) {
  for (const int size : kTileSizes) {
    if (size >= tokens || size == kMaxTile) return size;
  }
  return kMaxTile;
}

// One group of 32 inputs of one token, rounded and laid out. `first` is where its first run lies
// in a form, `step` the distance to the next one; both in floats.
template <bool kDots>
void prepare_group(const float (&x)[kGroup], const Inputs& inputs, int64_t first, int64_t step) {
  constexpr float kScales[kRun] = {1,        0x1p-4f,  0x1p-8f,  0x1p-12f,
                                   0x1p-16f, 0x1p-20f, 0x1p-24f, 1};
  for (int run = 0; run < kGroup / kRun; ++run) {
    const float* from = x + run * kRun;
    if (inputs.plain != nullptr) {
      float* to = inputs.plain + first + run * step;
      for (int n = 0; n < kRun; ++n) to[n] = from[n];
    }
    if (inputs.other == nullptr) continue;
    if constexpr (kDots) {
      // Half as long: a pair of bfloat16 takes the room of one float. The inputs are rounded.
      float* to = inputs.other + (first + run * step) / 2;
      for (int n = 0; n < kRun / 2; ++n) {
        const uint32_t even = __builtin_bit_cast(uint32_t, from[2 * n]) >> 16;
        const uint32_t odd = __builtin_bit_cast(uint32_t, from[2 * n + 1]);
        to[n] = __builtin_bit_cast(float, even | odd);
      }
    } else {
      float* to = inputs.other + first + run * step;
      for (int n = 0; n < kRun; ++n) to[n] = from[n % 4 * 2 + n / 4] * kScales[n];
    }
  }
}

template <bool kDots>
void prepare_token(const LinearArgs& args, const Inputs& inputs, int64_t tile, int64_t size,
                   int64_t t) {
  const int64_t first = tile * kMaxTile;
  const int64_t groups = inputs.cols / kGroup;
  const float* input = args.input + (first + t) * args.input_stride;
  for (int64_t group = 0; group < groups; ++group) {
    float x[kGroup] = {};
    const int64_t left = args.cols - group * kGroup;
    if (first + t < args.tokens) {
      __builtin_memcpy(x, input + group * kGroup, (left < kGroup ? left : kGroup) * 4);
    }
    Vec sum{};
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      Vec part = load(x + i);
      if (args.input_type == DType::kBFloat16) {
        part = round_bf16(part);
        store(x + i, part);
      }
      sum = sum + part;
    }
    inputs.sums[first * groups + group * size + t] = reduce_add(sum);
    const int64_t run = first * inputs.cols + (group * (kGroup / kRun) * size + t) * kRun;
    prepare_group<kDots>(x, inputs, run, size * kRun);
  }
}

// The panels of all parts, counted through.
struct Panel {
  const LinearPart* part;
  int64_t index;
};

Panel find_panel(const LinearArgs& args, int64_t index) {
  const LinearPart* part = args.parts;
  while (index >= panel_count(part->weights.rows)) {
    index -= panel_count(part->weights.rows);
    ++part;
  }
  return {part, index};
}

template <bool kDots>
void multiply_panel(const LinearArgs& args, const Inputs& inputs, Panel panel, int64_t tile) {
  const LinearPart& part = *panel.part;
  const int64_t first = tile * kMaxTile;
  const int64_t row = panel.index * kPanelRows;
  const int64_t tokens = args.tokens - first < kMaxTile ? args.tokens - first : kMaxTile;
  const int64_t rows = part.weights.rows - row;
  const int size = tile_size(tokens);
  const Form form = form_of<kDots>(part.weights.type);
  const float* input = form == Form::kPlain    ? inputs.plain + first * inputs.cols
                       : form == Form::kScaled ? inputs.other + first * inputs.cols
                                               : inputs.other + first * inputs.cols / 2;
  kernel_of<kDots>(part.weights.type, size)({
      .panel = part.weights.panel(panel.index),
      .cols = args.cols,
      .input = input,
      .sums = inputs.sums + first * (inputs.cols / kGroup),
      .bias = part.bias == nullptr ? nullptr : part.bias + row,
      .out = part.out + first * part.out_stride + row,
      .out_stride = part.out_stride,
      .rows = rows < kPanelRows ? rows : kPanelRows,
      .tokens = tokens,
      .accumulate = part.accumulate,
  });
}

template <bool kDots>
void run_linear(const LinearArgs& args, const Launch& launch) {
  const int64_t tiles = (args.tokens + kMaxTile - 1) / kMaxTile;
  const Inputs inputs = place_inputs<kDots>(args);
  launch.pool->run(tiles, [&](int64_t tile, int) {
    const int size = tile_size(args.tokens - tile * kMaxTile);
    for (int t = 0; t < size; ++t) prepare_token<kDots>(args, inputs, tile, size, t);
  });

  int64_t panels = 0;
  for (int64_t i = 0; i < args.part_count; ++i) {
    panels += panel_count(args.parts[i].weights.rows);
  }
  // A task takes so many tiles that their inputs stay in a core's own cache while its panels pass.
  constexpr int64_t kCacheBytes = 256 * 1024;
  const int64_t tile_bytes = kMaxTile * inputs.cols * 4;
  const int64_t block = tile_bytes < kCacheBytes ? kCacheBytes / tile_bytes : 1;
  const int64_t blocks = (tiles + block - 1) / block;
  // Sixteen tasks a thread: the last one to finish is late by a few per cent at most.
  const int64_t wanted = int64_t{16} * launch.pool->threads();
  const int64_t chunk = panels > wanted ? panels / wanted : 1;
  const int64_t chunks = (panels + chunk - 1) / chunk;
  launch.pool->run(blocks * chunks, [&](int64_t task, int) {
    const int64_t first = task % chunks * chunk;
    const int64_t first_tile = task / chunks * block;
    for (int64_t panel = first; panel < first + chunk && panel < panels; ++panel) {
      const Panel found = find_panel(args, panel);
      for (int64_t tile = first_tile; tile < first_tile + block && tile < tiles; ++tile) {
        multiply_panel<kDots>(args, inputs, found, tile);
      }
    }
  });
}

void linear_fma(const LinearArgs& args, const Launch& launch) { run_linear<false>(args, launch); }
