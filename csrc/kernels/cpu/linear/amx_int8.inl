// linear with inputs in 8 bits on the tile unit, for many tokens and weights that are codes. The
// unit's sums are exact, so bits are those of linear/int8.inl: Note: [One order for integers of 8
// bits].
//
// A register of inputs is a unit of a band of 16 tokens, a register of weights a unit of a panel in
// signed bytes; half of it, where groups of 16 columns have scales of their own. As with bfloat16,
// a few units are converted at a time, in L1, and multiplied by all bands of a task: Note:
// [Registers and blocks], linear/amx.inl.
#pragma once

#include "kernels/cpu/linear/input.inl"
#include "kernels/cpu/linear/int8.inl"
#include "kernels/cpu/linear/panels.inl"
#include "kernels/cpu/linear/single_token.inl"
#include "kernels/cpu/linear/tile_outputs.inl"

// Up to as many tokens vectors are faster: they need no conversion in memory.
constexpr int64_t kMostTokensWithoutTiles = kMaxTile;

constexpr int64_t kByteBand = kTileRows;  // tokens; the last band is padded
constexpr int64_t kMostByteBands = 16;    // that converted units are multiplied by
constexpr int64_t kTogetherByteUnits = 32;
constexpr int64_t kTogetherByteUnitsOfFew = 4;  // prefetches then keep a steady pace
constexpr int64_t kFewByteBands = 2;
constexpr int64_t kByteUnitBytes = kPanelRows * kUnit;

// The registers: of each kind two, used alternately. Nothing renames them, so a product would have
// to wait until the sums of the one before are in memory.
constexpr int kByteSums = 0, kByteInputs = 2, kByteWeights = 4;

// Registers for groups of `cols` columns.
void configure_byte_tiles(int64_t cols) {
  TileShapes shapes;
  const auto shape = [&](int to, int64_t rows, int64_t row_bytes) {
    shapes.rows[to] = static_cast<uint8_t>(rows);
    shapes.row_bytes[to] = static_cast<uint16_t>(row_bytes);
  };
  for (int turn = 0; turn < 2; ++turn) {
    shape(kByteSums + turn, kByteBand, kTileRowBytes);
    shape(kByteInputs + turn, kByteBand, cols);
    shape(kByteWeights + turn, cols / 4, kTileRowBytes);
  }
  tiles::configure(shapes);
}

// Some units of a panel, converted: signed bytes, and a scale and minimum for each group.
template <PanelFormat kFormat>
struct ByteUnits {
  static constexpr int64_t kParts = kUnit / sum_cols(kFormat);  // groups of a unit
  static constexpr int64_t kGroups = kTogetherByteUnits * kParts;
  alignas(64) std::byte bytes[kTogetherByteUnits][kByteUnitBytes];
  alignas(64) float scales[kGroups][kPanelRows];
  alignas(64) float minima[has_minimum(kFormat) ? kGroups : 1][kPanelRows];

  void convert(const Unit& unit, int64_t to) {
    using Bytes = int8_t __attribute__((vector_size(4 * kLanes)));
    constexpr auto kOffset = static_cast<int8_t>(byte_offset(kFormat));  // 128 wraps around
#pragma GCC unroll 8
    for (int quad = 0; quad < kUnit / 4; ++quad) {
      const auto quads =
          reinterpret_cast<Bytes>(code_quad<kFormat>(codes_of<kFormat>(unit), quad, 0));
      store_words(bytes[to] + quad * kTileRowBytes, reinterpret_cast<UintVec>(quads - kOffset));
    }
    for (int64_t part = 0; part < kParts; ++part) {
      const int64_t group = unit.index * kUnit / kFormat.group + part;
      store(scales[to * kParts + part], scales_of<kFormat>(unit.scales, group, 0));
      if constexpr (has_minimum(kFormat)) {
        store(minima[to * kParts + part], minima_of<kFormat>(unit.scales, group, 0));
      }
    }
  }
};

// Multiplies `count` converted units by one band. `x`, `input_scales`, `input_sums`: the band's,
// from the first of them on.
template <PanelFormat kFormat>
SINKSTREAM_INLINE void add_byte_units(const ByteUnits<kFormat>& units, int64_t count,
                                      const int8_t* x, const float* input_scales,
                                      const float* input_sums, float (*sums)[kPanelRows]) {
  constexpr int64_t kParts = ByteUnits<kFormat>::kParts, kCols = sum_cols(kFormat);
  alignas(64) int32_t rows[kByteBand][kPanelRows];
  const int64_t groups = count * kParts;
  Vec acc[kByteBand];
#pragma GCC unroll 16
  for (int t = 0; t < kByteBand; ++t) acc[t] = load(sums[t]);
  const auto multiply = [&]<int kTurn>(int64_t group) __attribute__((always_inline)) {
    tiles::clear<kByteSums + kTurn>();
    tiles::load<kByteInputs + kTurn>(
        x + group / kParts * kByteBand * kUnit + group % kParts * kCols, kUnit);
    tiles::load<kByteWeights + kTurn>(units.bytes[0] + group * kPanelRows * kCols);
    tiles::multiply_bytes<kByteSums + kTurn, kByteInputs + kTurn, kByteWeights + kTurn>();
  };
  const auto add = [&]<int kTurn>(int64_t group) __attribute__((always_inline)) {
    if (group + 1 < groups) multiply.template operator()<1 - kTurn>(group + 1);
    tiles::store<kByteSums + kTurn>(rows);
    const Vec scale = load(units.scales[group]);
    const Vec minimum = has_minimum(kFormat) ? load(units.minima[group]) : Vec{};
    const float* const scales = input_scales + group / kParts * kByteBand;
#pragma GCC unroll 16
    for (int t = 0; t < kByteBand; ++t) {
      const auto sum = reinterpret_cast<IntVec>(load_words(rows[t]));
      acc[t] = add_scaled(scale, sum, scales[t], acc[t]);
      if constexpr (has_minimum(kFormat)) {
        acc[t] = fma_once(minimum, broadcast(input_sums[group * kByteBand + t]), acc[t]);
      }
    }
  };
  multiply.template operator()<0>(0);
  for (int64_t group = 0; group < groups; group += 2) {
    add.template operator()<0>(group);
    if (group + 1 < groups) add.template operator()<1>(group + 1);
  }
#pragma GCC unroll 16
  for (int t = 0; t < kByteBand; ++t) store(sums[t], acc[t]);
}

// A panel times up to kMostByteBands bands.
template <PanelFormat kFormat>
void multiply_byte_bands(const Tile& tile) {
  const int64_t bands = divide_up(tile.tokens, kByteBand);
  const int64_t units = tile.cols / kUnit;
  const auto* x = static_cast<const int8_t*>(tile.inputs.x);
  ByteUnits<kFormat> converted;
  alignas(64) float sums[kMostByteBands * kByteBand][kPanelRows];
  __builtin_memset(sums, 0, bands * kByteBand * sizeof(sums[0]));
  const int64_t most = bands > kFewByteBands ? kTogetherByteUnits : kTogetherByteUnitsOfFew;
  for (int64_t first = 0; first < units; first += most) {
    const int64_t count = units - first < most ? units - first : most;
    const int64_t outputs =
        first + count == units ? divide_up(tile.tokens, count) : 0;  // to prefetch
    for (int64_t n = 0; n < count; ++n) {
      prefetch_outputs(tile, outputs * n, outputs * (n + 1));
      const Unit unit = unit_at<kFormat>(tile.panel, tile.block, first + n);
      if (tile.prefetches_panel) prefetch_codes<kFormat>(unit);
      converted.convert(unit, n);
    }
    for (int64_t band = 0; band < bands; ++band) {
      const int64_t entry = (band * units + first) * kByteBand;
      add_byte_units<kFormat>(converted, count, x + entry * kUnit, tile.inputs.scales + entry,
                              tile.inputs.sums + entry * (kUnit / sum_cols(kFormat)),
                              sums + band * kByteBand);
    }
  }
  write_rows(tile, sums);
}

TileKernel* byte_kernel_of(WeightType type) {
  static constexpr auto kKernels =
      per_format<TileKernel*>([]<PanelFormat kFormat>() -> TileKernel* {
        if constexpr (has_integers(kFormat)) return multiply_byte_bands<kFormat>;
        return nullptr;
      });
  return kKernels[static_cast<size_t>(type)];
}

// One panel times `count` bands from `first` on.
void multiply_byte_panel(const LinearArgs& args, const Inputs& inputs, Panel panel, int64_t first,
                         int64_t count, bool prefetches_panel) {
  const LinearPart& part = *panel.part;
  const PanelFormat format = format_of(part.weights.type);
  const int64_t row = panel.index * kPanelRows, rows = part.weights.rows - row;
  const int64_t token = first * kByteBand, tokens = args.tokens - token;
  const int8_t* const bytes =
      form_of(Way::kInt8, format) == Form::kBytes ? inputs.bytes : inputs.paired_bytes;
  byte_kernel_of(part.weights.type)({
      .panel = part.weights.panel(panel.index),
      .cols = args.cols,
      .block = part.weights.block,
      .inputs = {.x = bytes + token * inputs.cols,
                 .sums = inputs.sums_of(format) + token * (inputs.cols / sum_cols(format)),
                 .scales = inputs.scales + token * (inputs.cols / kUnit),
                 .counts = nullptr},
      .bias = part.bias == nullptr ? nullptr : part.bias + row,
      .out = part.out + token * part.out_stride + row,
      .out_stride = part.out_stride,
      .rows = rows < kPanelRows ? rows : kPanelRows,
      .tokens = tokens < count * kByteBand ? tokens : count * kByteBand,
      .accumulate = part.accumulate,
      .prefetches_panel = prefetches_panel,
  });
}

// One task. As with bfloat16, it configures the registers itself.
void multiply_byte_share(const LinearArgs& args, const Inputs& inputs, const Share& share,
                         int64_t end_band) {
  int64_t configured = 0;
  for (int64_t n = share.first_panel; n < share.end_panel; ++n) {
    const Panel panel = find_panel(args, n);
    const int64_t cols = sum_cols(format_of(panel.part->weights.type));
    if (cols != configured) configure_byte_tiles(cols);
    configured = cols;
    for (int64_t band = share.first_tile; band < end_band; band += kMostByteBands) {
      const int64_t count = end_band - band < kMostByteBands ? end_band - band : kMostByteBands;
      multiply_byte_panel(args, inputs, panel, band, count, band == share.first_tile);
    }
  }
  if (configured > 0) tiles::release();
}

void run_linear_byte_tiles(const LinearArgs& args, const Launch& launch) {
  const Inputs inputs = inputs_in_scratch<Way::kInt8, kByteBand>(args, 0);
  const int64_t bands = divide_up(args.tokens, kByteBand);
  launch.pool->run(bands, [&](int64_t band, int) {
    for (int64_t t = 0; t < kByteBand; ++t) {
      prepare_token<Way::kInt8, kByteBand, kUnit>(args, inputs, band, kByteBand, t);
    }
  });
  const Grain grain = {
      .tile_tokens = kByteBand, .token_bytes = inputs.cols, .cache_bytes = kTileCacheBytes};
  share_panels(
      args, launch, grain, [](int) {},
      [&](const Share& share, int) { multiply_byte_share(args, inputs, share, share.end_tile); });
}
