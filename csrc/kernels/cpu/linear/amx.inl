// linear with bfloat16 inputs on the tile unit: bfloat16 weights, and codes, which are converted to
// bfloat16 (except for a single token: linear/single_token.inl). Inputs in 8 bits: see
// linear/amx_int8.inl. Everything else goes to `linear_without_tiles`, which the including file
// defines.
//
// A register of weights is a unit of a panel; a register of inputs is a unit of a band. Where
// groups of 16 columns have scales of their own, it is half a unit. For every output, regardless of
// its token's band and that band's size:
//
//   bfloat16   acc = acc + (even + odd): Note: [What the tile unit adds]
//   codes      sum = 0 + (even + odd), added to acc as in Note: [One order along K]
//
// Note: [Registers and blocks]
// The unit computes faster than L2 delivers. With bfloat16, two panels are multiplied by two bands:
// four products from four registers. With codes, each unit needs its own register of sums. So a
// few units at a time are converted to bfloat16, in L1, and multiplied by all bands of a task,
// whose sums are kept in memory in between. This does not change any bit.
#pragma once

#include "kernels/cpu/linear/amx_int8.inl"
#include "kernels/cpu/linear/bands.inl"
#include "kernels/cpu/linear/pairs.inl"
#include "kernels/cpu/linear/panels.inl"
#include "kernels/cpu/linear/single_token.inl"
#include "kernels/cpu/linear/tile.inl"
#include "kernels/cpu/linear/tile_outputs.inl"

// See Note: [Registers and blocks].
constexpr int kMostPanels = 2;
constexpr int kMostBands = 2;
constexpr int64_t kTogetherUnits = 12;
constexpr int64_t kTogetherUnitsOfOne = 3;  // with one band: prefetches then keep a steady pace
constexpr int kMostBandsOfCodes = 8;

constexpr PanelFormat kBFloat16Format = format_of(WeightType::kBFloat16);
constexpr int64_t kUnitBytes = kTileRows * kTileRowBytes;  // of bfloat16 weights
static_assert(kUnitBytes == unit_bytes(kBFloat16Format));

// Registers: sums of two panels times two bands, inputs of two bands, weights of two panels.
constexpr int kFirstInputs = 4;
constexpr int kFirstWeights = 6;

// Sets the registers' shapes for bands of `size` tokens and `pairs` pairs along K.
void configure_tiles(int64_t size, int64_t pairs) {
  TileShapes shapes;
  for (int i = 0; i < kTileRegisters; ++i) {
    const bool has_inputs = i >= kFirstInputs && i < kFirstWeights;
    shapes.row_bytes[i] = static_cast<uint16_t>(has_inputs ? 4 * pairs : kTileRowBytes);
    shapes.rows[i] = static_cast<uint8_t>(i < kFirstWeights ? size : pairs);
  }
  tiles::configure(shapes);
}

// The pairs along K that a register holds.
int64_t register_pairs(const PanelFormat& format) {
  return is_coded(format) ? sum_cols(format) / 2 : kTileRows;
}

// Registers of sums: kPanel * kMostBands + kBand.
template <int kPanels, int kBands>
SINKSTREAM_INLINE void clear_sums() {
  tiles::clear<0>();
  if constexpr (kBands == 2) tiles::clear<1>();
  if constexpr (kPanels == 2) tiles::clear<2>();
  if constexpr (kPanels == 2 && kBands == 2) tiles::clear<3>();
}

// Adds the products of one register each. `panel_stride`: bytes; `band_stride`: elements.
template <int kPanels, int kBands>
SINKSTREAM_INLINE void multiply_registers(const std::byte* weights, int64_t panel_stride,
                                          const bf16* x, int64_t band_stride) {
  tiles::load<kFirstWeights>(weights);
  tiles::load<kFirstInputs>(x);
  tiles::multiply<0, kFirstInputs, kFirstWeights>();
  if constexpr (kBands == 2) {
    tiles::load<kFirstInputs + 1>(x + band_stride);
    tiles::multiply<1, kFirstInputs + 1, kFirstWeights>();
  }
  if constexpr (kPanels == 2) {
    tiles::load<kFirstWeights + 1>(weights + panel_stride);
    tiles::multiply<2, kFirstInputs, kFirstWeights + 1>();
    if constexpr (kBands == 2) tiles::multiply<3, kFirstInputs + 1, kFirstWeights + 1>();
  }
}

// Writes the outputs of panel kPanel.
template <int kTokens, int kBands, int kPanel>
SINKSTREAM_INLINE void write_panel(const Tile& tile) {
  alignas(64) float sums[kBands * kTokens][kPanelRows];
  tiles::store<kPanel * kMostBands>(sums);
  if constexpr (kBands == 2) tiles::store<kPanel * kMostBands + 1>(sums + kTokens);
  constexpr int64_t kRow = kPanel * kPanelRows;
  Tile one = tile;
  one.out += kRow;
  if (one.bias != nullptr) one.bias += kRow;
  one.rows = tile.rows - kRow < kPanelRows ? tile.rows - kRow : kPanelRows;
  write_rows(one, sums);
}

// kPanels consecutive panels of bfloat16 weights times kBands bands; `tile` has the rows and tokens
// of all of them.
template <int kTokens, int kPanels, int kBands>
void multiply_bf16(const Tile& tile) {
  constexpr int64_t kStep = kTokens * kUnit;
  const int64_t units = tile.cols / kUnit;
  const int64_t left = tile.cols % kUnit;
  const int64_t panel_stride = panel_bytes(kBFloat16Format, tile.cols);
  const int64_t band_stride = divide_up(tile.cols, kUnit) * kStep;
  const auto* x = static_cast<const bf16*>(tile.inputs.x);
  const std::byte* unit = tile.panel;
  clear_sums<kPanels, kBands>();
  for (int64_t n = 0; n < units; ++n) {
    if (tile.prefetches_panel) {
      prefetch_unit<kBFloat16Format, kTokens == 1>({unit, 0, nullptr});
      if constexpr (kPanels == 2) {
        prefetch_unit<kBFloat16Format, kTokens == 1>({unit + panel_stride, 0, nullptr});
      }
    }
    prefetch_outputs(tile, kBands * n, kBands * (n + 1));
    multiply_registers<kPanels, kBands>(unit, panel_stride, x, band_stride);
    unit += kUnitBytes;
    x += kStep;
  }
  if (left != 0) {  // one more unit, padded with zeros
    alignas(64) std::byte padded[kPanels][kUnitBytes] = {};
    for (int panel = 0; panel < kPanels; ++panel) {
      __builtin_memcpy(padded[panel], unit + panel * panel_stride,
                       panel_bytes(kBFloat16Format, left));
    }
    multiply_registers<kPanels, kBands>(padded[0], kUnitBytes, x, band_stride);
  }
  write_panel<kTokens, kBands, 0>(tile);
  if constexpr (kPanels == 2) write_panel<kTokens, kBands, 1>(tile);
}

// Converts the codes of one unit to bfloat16.
template <PanelFormat kFormat>
SINKSTREAM_INLINE void unpack_unit(const Unit& unit, const ValueTable& table, std::byte* to) {
  const std::byte* const codes = codes_of<kFormat>(unit);
#pragma GCC unroll 16
  for (int pair = 0; pair < kTileRows; ++pair) {
    store_words(to + pair * kTileRowBytes, pairs_at<kFormat>(codes, pair, table));
  }
}

// Multiplies `count` converted units, from unit `first` of the panel on, by one band.
template <PanelFormat kFormat, int kTokens>
SINKSTREAM_INLINE void add_codes(const Tile& tile, int64_t first, int64_t count,
                                 const std::byte* weights, const bf16* x, const float* input_sums,
                                 float (*sums)[kPanelRows]) {
  constexpr int64_t kParts = kUnit / sum_cols(kFormat);  // of a unit, a register each
  alignas(64) float rows[kTokens][kPanelRows];
  Vec acc[kTokens][kVectors];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) acc[t][0] = load(sums[t]);
  for (int64_t n = first; n < first + count; ++n) {
    const Unit unit = unit_at<kFormat>(tile.panel, tile.block, n);
    for (int64_t part = 0; part < kParts; ++part) {
      clear_sums<1, 1>();
      multiply_registers<1, 1>(weights, 0, x + part * sum_cols(kFormat), 0);
      tiles::store<0>(rows);
      Vec sum[kTokens][kVectors];
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) sum[t][0] = load(rows[t]);
      add_group(PairScales<kFormat>{unit}, part, input_sums, sum, acc);
      weights += kUnitBytes / kParts;
      input_sums += kTokens;
    }
    x += kTokens * kUnit;
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) store(sums[t], acc[t][0]);
}

// A panel of codes times up to kMostBandsOfCodes bands.
template <PanelFormat kFormat, int kTokens>
void multiply_codes(const Tile& tile) {
  const int64_t bands = divide_up(tile.tokens, kTokens);
  const int64_t units = tile.cols / kUnit;
  const auto* x = static_cast<const bf16*>(tile.inputs.x);
  const ValueTable table = value_table<kFormat>();
  alignas(64) std::byte weights[kTogetherUnits * kUnitBytes];
  alignas(64) float sums[kMostBandsOfCodes * kTokens][kPanelRows];
  __builtin_memset(sums, 0, bands * kTokens * sizeof(sums[0]));
  const int64_t most = bands > 1 ? kTogetherUnits : kTogetherUnitsOfOne;
  for (int64_t first = 0; first < units; first += most) {
    const int64_t count = units - first < most ? units - first : most;
    const int64_t outputs =
        first + count == units ? divide_up(tile.tokens, count) : 0;  // to prefetch
    for (int64_t n = 0; n < count; ++n) {
      prefetch_outputs(tile, outputs * n, outputs * (n + 1));
      const Unit unit = unit_at<kFormat>(tile.panel, tile.block, first + n);
      if (tile.prefetches_panel) prefetch_codes<kFormat>(unit);
      unpack_unit<kFormat>(unit, table, weights + n * kUnitBytes);
    }
    for (int64_t band = 0; band < bands; ++band) {
      const int64_t entry = (band * units + first) * kTokens;
      add_codes<kFormat, kTokens>(tile, first, count, weights, x + entry * kUnit,
                                  tile.inputs.sums + entry * (kUnit / sum_cols(kFormat)),
                                  sums + band * kTokens);
    }
  }
  write_rows(tile, sums);
}

// A band of one is a single token; with codes it does not use tiles.
bool needs_tiles(WeightType type, int64_t size) { return size > 1 || !is_quantized(type); }

template <int kTokens, int kPanels>
TileKernel* kernel_of_bf16(int64_t bands) {
  if constexpr (kTokens == kTileRows) {  // fewer tokens are one band
    if (bands == 2) return multiply_bf16<kTokens, kPanels, 2>;
  }
  return multiply_bf16<kTokens, kPanels, 1>;
}

using BandKernel = TileKernel*(int64_t panels, int64_t bands);

template <PanelFormat kFormat, int kTokens>
TileKernel* kernel_of_bands(int64_t panels, int64_t bands) {
  if constexpr (kFormat.number == Number::kBFloat16) {
    return panels == 2 ? kernel_of_bf16<kTokens, 2>(bands) : kernel_of_bf16<kTokens, 1>(bands);
  } else if constexpr (!is_coded(kFormat)) {
    return nullptr;
  } else if constexpr (kTokens == 1) {
    return multiply_single_token<kFormat>;
  } else {
    return multiply_codes<kFormat, kTokens>;
  }
}

TileKernel* kernel_of_type(WeightType type, int64_t size, int64_t panels, int64_t bands) {
  using BandKernels = std::array<BandKernel*, std::size(kBandSizes)>;
  static constexpr auto kKernels = per_format<BandKernels>([]<PanelFormat kFormat>() {
    return []<size_t... kIndex>(std::index_sequence<kIndex...>) {
      return BandKernels{kernel_of_bands<kFormat, kBandSizes[kIndex]>...};
    }(std::make_index_sequence<std::size(kBandSizes)>());
  });
  int index = 0;
  while (kBandSizes[index] != size) ++index;
  return kKernels[static_cast<size_t>(type)][index](panels, bands);
}

// `panels` panels of one part, starting at `panel`, times bands [first, first + count).
void multiply_panel_bands(const LinearArgs& args, const Bands& bands, Panel panel, int64_t panels,
                          int64_t first, int64_t count, bool prefetches_panel) {
  const LinearPart& part = *panel.part;
  const WeightType type = part.weights.type;
  const int64_t row = panel.index * kPanelRows;
  const int64_t rows = part.weights.rows - row;
  const int64_t token = first * bands.size;
  const int64_t tokens = args.tokens - token;
  const PanelFormat format = format_of(type);
  const bool reads_floats = !needs_tiles(type, bands.size);
  const bf16* const inputs = bands.inputs + token * bands.units * kUnit;
  kernel_of_type(type, bands.size, panels, count)({
      .panel = part.weights.panel(panel.index),
      .cols = args.cols,
      .block = part.weights.block,
      .inputs = {.x = reads_floats ? static_cast<const void*>(bands.floats) : inputs,
                 .sums = bands.sums_of(format) + token * bands.units * (kUnit / sum_cols(format)),
                 .scales = nullptr,
                 .counts = nullptr},
      .bias = part.bias == nullptr ? nullptr : part.bias + row,
      .out = part.out + token * part.out_stride + row,
      .out_stride = part.out_stride,
      .rows = rows < panels * kPanelRows ? rows : panels * kPanelRows,
      .tokens = tokens < count * bands.size ? tokens : count * bands.size,
      .accumulate = part.accumulate,
      .prefetches_panel = prefetches_panel,
  });
}

// How many panels, starting at `panel`, are multiplied together; the task has `most` left.
int64_t panels_together(Panel panel, int64_t most) {
  if (panel.part->weights.type != WeightType::kBFloat16) return 1;
  const int64_t left = panel_count(panel.part->weights.rows) - panel.index;
  const int64_t panels = left < most ? left : most;
  return panels < kMostPanels ? panels : kMostPanels;
}

// One task: its panels times bands [begin, end).
void multiply_share(const LinearArgs& args, const Bands& bands, const Share& share, int64_t begin,
                    int64_t end) {
  int64_t configured_pairs = 0;
  for (int64_t n = share.first_panel, together = 0; n < share.end_panel; n += together) {
    const Panel panel = find_panel(args, n);
    together = panels_together(panel, share.end_panel - n);
    // Per task, not per call: threads take tasks, and registers that are not released are saved and
    // restored on every context switch.
    const int64_t pairs = register_pairs(format_of(panel.part->weights.type));
    if (pairs != configured_pairs && needs_tiles(panel.part->weights.type, bands.size)) {
      configure_tiles(bands.size, pairs);
      configured_pairs = pairs;
    }
    const bool is_coded = is_quantized(panel.part->weights.type);
    const int64_t most = is_coded ? kMostBandsOfCodes : kMostBands;
    for (int64_t band = begin; band < end; band += most) {
      const int64_t count = end - band < most ? end - band : most;
      multiply_panel_bands(args, bands, panel, together, band, count, band == begin);
    }
  }
  if (configured_pairs > 0) tiles::release();
}

// See Note: [Single token].
void run_linear_tiles(const LinearArgs& args, const Launch& launch) {
  const Bands shared = bands_in_scratch(args, 0);
  const auto prepare = [&](int64_t copy, int64_t band) {
    const Bands bands = bands_in_scratch(args, copy);
    for (int64_t t = 0; t < bands.size; ++t) prepare_band_token(args, bands, band, t);
  };
  const auto begin = lay_out_inputs(args, launch, shared.count, prepare);
  const Grain grain = {.tile_tokens = kMostBands * shared.size,
                       .token_bytes = shared.units * kUnit * 2,
                       .cache_bytes = kTileCacheBytes,
                       .panels = args.tokens > 1 ? kMostPanels : 1};
  share_panels(args, launch, grain, begin, [&](const Share& share, int thread) {
    const Bands bands = bands_in_scratch(args, input_copy_of(args, thread));
    const int64_t last = share.end_tile * kMostBands;
    multiply_share(args, bands, share, share.first_tile * kMostBands,
                   last < bands.count ? last : bands.count);
  });
}

void linear_of_one_input(const LinearArgs& args, const Launch& launch) {
  const InputType input = args.input_type;
  const bool with_bytes = input == InputType::kInt8 && args.tokens > kMostTokensWithoutTiles;
  const auto uses_tiles = [&](WeightType type) {
    if (input == InputType::kInt8 && are_integers(type)) return with_bytes;
    const bool is_unpacked = is_quantized(type) || type == WeightType::kBFloat16;
    return is_unpacked && without_integers(input) == InputType::kBFloat16;
  };
  for_each_kind(args, uses_tiles, [&](const LinearArgs& run, bool with_tiles) {
    if (!with_tiles) return linear_without_tiles(run, launch);
    if (!with_bytes) return run_linear_tiles(run, launch);
    for_each_kind(run, kAreIntegers, [&](const LinearArgs& same, bool as_integers) {
      as_integers ? run_linear_byte_tiles(same, launch) : run_linear_tiles(same, launch);
    });
  });
}

void linear_amx(const LinearArgs& all, const Launch& launch) {
  for_each_input(all, [&](const LinearArgs& args) { linear_of_one_input(args, launch); });
}
