// linear with bfloat16 inputs through the tile unit: bfloat16 weights, and codes of 8 and 4 bits,
// which become bfloat16 on the way. Everything else is for `linear_without_tiles`, which the file
// that includes this one defines.
//
// Tokens are taken in bands: a token is a row of a register, and a group of 32 columns as wide as
// one. A group of a panel is a register of weights. For every output, whatever band its token is
// in and whatever that band's size:
//
//   bfloat16   acc = acc + (even + odd): Note: [What the tile unit adds]
//   codes      sum = 0 + (even + odd), and acc takes it as in Note: [One order along K]

#include "kernels/cpu/linear_panels.inl"

#include "kernels/cpu/linear_tile.inl"

#include "kernels/cpu/linear_pairs.inl"

// Tokens of a band. A call takes the smallest size that holds all its tokens, or whole bands of
// kTileRows; the last one is padded with zeros.
constexpr int kBandSizes[] = {1, 2, 4, 8, kTileRows};

// Bands that meet a panel together, so that several products are in flight. Codes go through
// vectors after each group, which one band keeps busy.
constexpr int kMostBands = 3;
constexpr int kBandsBesideCodes = 1;

// Registers: kMostBands of sums, then as many of inputs, then weights.
constexpr int kFirstInputs = kMostBands;
constexpr int kWeights = 2 * kMostBands;

// The inputs of one call in LinearArgs::scratch.
struct Bands {
  int64_t size;  // tokens in each, padding included
  int64_t count;
  int64_t groups;  // of kGroup columns, the last one padded
  bf16* inputs;    // [count][groups][size][kGroup]
  float* sums;     // [count][groups][size]: Σx of each group
};

int band_size(int64_t tokens) {
  for (const int size : kBandSizes) {
    if (size >= tokens) return size;
  }
  return kTileRows;
}

// `copy`: of a token alone there are as many as threads.
Bands place_bands(const LinearArgs& args, int64_t copy) {
  const int64_t size = band_size(args.tokens);
  const int64_t count = divide_up(args.tokens, size);
  const int64_t groups = divide_up(args.cols, kGroup);
  auto* inputs = reinterpret_cast<bf16*>(args.scratch + copy * linear_token_bytes(args.cols));
  return {size, count, groups, inputs,
          reinterpret_cast<float*>(inputs + count * size * groups * kGroup)};
}

// One token's inputs, rounded, and their sums over groups. `t` counts within the band.
void prepare_band_token(const LinearArgs& args, const Bands& bands, int64_t band, int64_t t) {
  const int64_t token = band * bands.size + t;
  for (int64_t group = 0; group < bands.groups; ++group) {
    const int64_t entry = (band * bands.groups + group) * bands.size + t;
    alignas(64) float x[kGroup] = {};
    const int64_t left = args.cols - group * kGroup;
    if (token < args.tokens) {
      __builtin_memcpy(x, args.input + token * args.input_stride + group * kGroup,
                       (left < kGroup ? left : kGroup) * 4);
    }
    Vec sum{};
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      const Vec part = round_bf16(load(x + i));
      store_bf16(bands.inputs + entry * kGroup + i, part);
      sum = sum + part;
    }
    bands.sums[entry] = reduce_add(sum);
  }
}

// The registers' shapes for bands of `size` tokens.
void configure_tiles(int64_t size) {
  TileShapes shapes;
  for (int i = 0; i <= kWeights; ++i) {
    shapes.row_bytes[i] = kTileRowBytes;
    shapes.rows[i] = static_cast<uint8_t>(i == kWeights ? kTileRows : size);
  }
  tiles::configure(shapes);
}

// Bands from kBand on meet the weights that are loaded. `x`: inputs of band kBand.
template <int kBands, int kBand = 0>
SINKSTREAM_INLINE void multiply_loaded(const bf16* x, int64_t band_stride) {
  if constexpr (kBand < kBands) {
    tiles::load<kFirstInputs + kBand>(x);
    tiles::multiply<kBand, kFirstInputs + kBand, kWeights>();
    multiply_loaded<kBands, kBand + 1>(x + band_stride, band_stride);
  }
}

template <int kBands, int kBand = 0>
SINKSTREAM_INLINE void clear_sums() {
  if constexpr (kBand < kBands) {
    tiles::clear<kBand>();
    clear_sums<kBands, kBand + 1>();
  }
}

// Tokens are written one by one from memory, where the unit leaves them; so vectors of sums are
// only ever counted through by unrolled loops, and stay in registers.
template <int kTokens>
SINKSTREAM_INLINE void write_rows(Tile tile, const float (&rows)[kTokens][kPanelRows]) {
  const int64_t tokens = tile.tokens < kTokens ? tile.tokens : kTokens;
  tile.tokens = 1;
  for (int64_t t = 0; t < tokens; ++t, tile.out += tile.out_stride) {
    const Vec row[1][kVectors] = {{load(rows[t])}};
    write_outputs<1>(tile, row);
  }
}

template <int kTokens, int kBands, int kBand = 0>
SINKSTREAM_INLINE void write_bands(Tile tile) {
  if constexpr (kBand < kBands) {
    alignas(64) float rows[kTokens][kPanelRows];
    tiles::store<kBand>(rows);
    write_rows(tile, rows);
    tile.out += kTokens * tile.out_stride;
    tile.tokens -= kTokens;
    write_bands<kTokens, kBands, kBand + 1>(tile);
  }
}

// A panel of bfloat16 weights times kBands bands; `tile` has the tokens of all of them.
template <int kTokens, int kBands>
void multiply_bf16(const Tile& tile) {
  constexpr int64_t kBytes = group_bytes(WeightType::kBFloat16);
  constexpr int64_t kStep = kTokens * kGroup;
  const int64_t left = tile.cols % kGroup;
  const int64_t band_stride = divide_up(tile.cols, kGroup) * kStep;
  const auto* x = static_cast<const bf16*>(tile.input);
  const std::byte* group = tile.panel;
  clear_sums<kBands>();
  for (int64_t groups = tile.cols / kGroup; groups > 0; --groups) {
    if (tile.asks) prefetch_group<WeightType::kBFloat16>(group);
    tiles::load<kWeights>(group);
    multiply_loaded<kBands>(x, band_stride);
    group += kBytes;
    x += kStep;
  }
  if (left != 0) {  // a whole group again, filled up with zeros
    alignas(64) std::byte padded[kBytes] = {};
    __builtin_memcpy(padded, group, panel_bytes(WeightType::kBFloat16, left));
    tiles::load<kWeights>(padded);
    multiply_loaded<kBands>(x, band_stride);
  }
  write_bands<kTokens, kBands>(tile);
}

// A panel of codes, which become bfloat16 group by group, times one band.
template <WeightType kType, int kTokens>
void multiply_codes(const Tile& tile) {
  const auto* x = static_cast<const bf16*>(tile.input);
  const float* group_sums = tile.sums;
  const std::byte* group = tile.panel;
  const UintVec table = code_table<kType>();
  alignas(64) std::byte weights[kTileRows * kTileRowBytes];
  alignas(64) float rows[kTokens][kPanelRows];
  Vec acc[kTokens][kVectors] = {};
  for (int64_t groups = tile.cols / kGroup; groups > 0; --groups) {
    if (tile.asks) prefetch_group<kType>(group);
#pragma GCC unroll 16
    for (int pair = 0; pair < kTileRows; ++pair) {
      store_words(weights + pair * kTileRowBytes, pairs_at<kType>(group, pair, table));
    }
    tiles::clear<0>();
    tiles::load<kWeights>(weights);
    multiply_loaded<1>(x, 0);
    tiles::store<0>(rows);
    Vec sum[kTokens][kVectors];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) sum[t][0] = load(rows[t]);
    take_group<kType, kTokens, kType == WeightType::kInt4Minimum>(
        group, kType == WeightType::kInt8 ? 0x1p-24f : 1.0f, group_sums, sum, acc);
    group += group_bytes(kType);
    x += kTokens * kGroup;
    group_sums += kTokens;
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) store(rows[t], acc[t][0]);
  write_rows(tile, rows);
}

template <WeightType kType, int kTokens>
TileKernel* kernel_of_bands(int64_t bands) {
  if constexpr (is_quantized(kType)) {
    return multiply_codes<kType, kTokens>;
  } else {
    if constexpr (kTokens == kTileRows) {  // fewer tokens are one band
      if (bands == 3) return multiply_bf16<kTokens, 3>;
      if (bands == 2) return multiply_bf16<kTokens, 2>;
    }
    return multiply_bf16<kTokens, 1>;
  }
}

template <WeightType kType, int kIndex = 0>
TileKernel* kernel_of_band_size(int64_t size, int64_t bands) {
  constexpr int kSize = kBandSizes[kIndex];
  if (size == kSize) return kernel_of_bands<kType, kSize>(bands);
  if constexpr (kSize < kTileRows) return kernel_of_band_size<kType, kIndex + 1>(size, bands);
  return nullptr;
}

TileKernel* kernel_through_tiles(WeightType type, int64_t size, int64_t bands) {
  switch (type) {
    case WeightType::kBFloat16: return kernel_of_band_size<WeightType::kBFloat16>(size, bands);
    case WeightType::kInt8: return kernel_of_band_size<WeightType::kInt8>(size, bands);
    case WeightType::kInt4: return kernel_of_band_size<WeightType::kInt4>(size, bands);
    case WeightType::kInt4Minimum:
      return kernel_of_band_size<WeightType::kInt4Minimum>(size, bands);
    default: return nullptr;
  }
}

// One panel times bands [first, first + count).
void multiply_panel_bands(const LinearArgs& args, const Bands& bands, Panel panel, int64_t first,
                          int64_t count, bool asks) {
  const LinearPart& part = *panel.part;
  const int64_t row = panel.index * kPanelRows;
  const int64_t rows = part.weights.rows - row;
  const int64_t token = first * bands.size;
  const int64_t tokens = args.tokens - token;
  kernel_through_tiles(part.weights.type, bands.size, count)({
      .panel = part.weights.panel(panel.index),
      .cols = args.cols,
      .input = bands.inputs + token * bands.groups * kGroup,
      .sums = bands.sums + token * bands.groups,
      .scales = nullptr,
      .bias = part.bias == nullptr ? nullptr : part.bias + row,
      .out = part.out + token * part.out_stride + row,
      .out_stride = part.out_stride,
      .rows = rows < kPanelRows ? rows : kPanelRows,
      .tokens = tokens < count * bands.size ? tokens : count * bands.size,
      .accumulate = part.accumulate,
      .asks = asks,
  });
}

// A token alone as in Note: [A token alone].
void run_linear_through_tiles(const LinearArgs& args, const Launch& launch) {
  const Bands shared = place_bands(args, 0);
  const auto prepare = [&](int64_t copy, int64_t band) {
    const Bands bands = place_bands(args, copy);
    for (int64_t t = 0; t < bands.size; ++t) prepare_band_token(args, bands, band, t);
  };
  const auto begin = lay_out_inputs(args, launch, shared.count, prepare);
  // Threads share strips of kMostBands bands.
  const int64_t strip = kMostBands * shared.size;
  const int64_t token_bytes = shared.groups * kGroup * 2;
  share_panels(args, launch, strip, token_bytes, begin, [&](const Share& share, int thread) {
    const Bands bands = place_bands(args, copy_of(args, thread));
    // For a task, not for the call: a thread gets tasks, and registers that it does not release are
    // saved and loaded whenever it loses its core.
    configure_tiles(bands.size);
    const int64_t last = share.end_tile * kMostBands;
    const int64_t end = last < bands.count ? last : bands.count;
    for (int64_t panel = share.first_panel; panel < share.end_panel; ++panel) {
      const Panel found = find_panel(args, panel);
      const bool is_coded = is_quantized(found.part->weights.type);
      const int64_t together = is_coded ? kBandsBesideCodes : kMostBands;
      const int64_t first = share.first_tile * kMostBands;
      for (int64_t band = first; band < end; band += together) {
        const int64_t count = end - band < together ? end - band : together;
        multiply_panel_bands(args, bands, found, band, count, band == first);
      }
    }
    tiles::release();
  });
}

bool goes_through_tiles(const LinearArgs& args, int64_t part) {
  const WeightType type = args.parts[part].weights.type;
  return args.input_type == InputType::kBFloat16 &&
         (type == WeightType::kBFloat16 || is_quantized(type));
}

// Neighbouring parts that go the same way are one call.
void linear_amx(const LinearArgs& args, const Launch& launch) {
  for (int64_t first = 0, end = 0; first < args.part_count; first = end) {
    const bool through_tiles = goes_through_tiles(args, first);
    while (end < args.part_count && goes_through_tiles(args, end) == through_tiles) ++end;
    LinearArgs run = args;
    run.parts = args.parts + first;
    run.part_count = end - first;
    if (through_tiles) {
      run_linear_through_tiles(run, launch);
    } else {
      linear_without_tiles(run, launch);
    }
  }
}
