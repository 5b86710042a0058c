// linear: chooses the kernel for a panel and a tile, and runs the op.
#pragma once

#include "kernels/cpu/linear/input.inl"
#include "kernels/cpu/linear/int16.inl"
#include "kernels/cpu/linear/int8.inl"
#include "kernels/cpu/linear/panels.inl"
#include "kernels/cpu/linear/prefetch.inl"
#include "kernels/cpu/linear/tile.inl"

// In linear/dot.inl; only tables with bfloat16 dot instructions use it.
template <PanelFormat kFormat, int kTokens>
void multiply_tile_dot(const Tile& tile);

template <Way kWay, PanelFormat kFormat, int kTokens>
constexpr TileKernel* kernel_of_size() {
  constexpr Form kForm = form_of<kWay>(kFormat);
  if constexpr (kWay == Way::kInt8) {
    if constexpr (has_integers(kFormat)) return multiply_tile_int8<kFormat, kTokens>;
    return nullptr;
  } else if constexpr (kForm == Form::kPlain || kForm == Form::kScaled) {
    return multiply_tile<kFormat, kTokens>;
  } else if constexpr (kWay == Way::kInt16) {
    return multiply_tile_int16<kFormat, kTokens>;
  } else {
    return multiply_tile_dot<kFormat, kTokens>;
  }
}

// The kernels of one format, one for each of kTileSizes up to kMaxTile.
using TileKernels = std::array<TileKernel*, std::size(kTileSizes)>;

template <Way kWay, PanelFormat kFormat, int kIndex = 0>
constexpr void add_kernels(TileKernels* kernels) {
  (*kernels)[kIndex] = kernel_of_size<kWay, kFormat, kTileSizes[kIndex]>();
  if constexpr (kTileSizes[kIndex] < kMaxTile) add_kernels<kWay, kFormat, kIndex + 1>(kernels);
}

template <Way kWay>
TileKernel* kernel_of(WeightType type, int size) {
  static constexpr auto kKernels = per_format<TileKernels>([]<PanelFormat kFormat>() {
    TileKernels kernels{};
    add_kernels<kWay, kFormat>(&kernels);
    return kernels;
  });
  int index = 0;
  while (kTileSizes[index] != size) ++index;
  return kKernels[static_cast<size_t>(type)][index];
}

// The inputs of the tile whose first token is `first`.
const void* input_of(const Inputs& inputs, Form form, int64_t first) {
  switch (form) {
    case Form::kPlain: return inputs.plain + first * inputs.cols;
    case Form::kScaled: return inputs.scaled + first * inputs.cols;
    case Form::kPairs: return inputs.pairs + first * inputs.cols / 2;
    case Form::kQuads: return inputs.quads + first * inputs.cols / 2;
    case Form::kBytes: return inputs.bytes + first * inputs.cols;
    case Form::kPairedBytes: return inputs.paired_bytes + first * inputs.cols;
  }
  return nullptr;
}

template <Way kWay>
void multiply_panel(const LinearArgs& args, const Inputs& inputs, Panel panel, int64_t tile,
                    bool prefetches_panel, const PrefetchLines& prefetch) {
  const LinearPart& part = *panel.part;
  const PanelFormat format = format_of(part.weights.type);
  const int64_t first = tile * kMaxTile;
  const int64_t row = panel.index * kPanelRows;
  const int64_t tokens = args.tokens - first < kMaxTile ? args.tokens - first : kMaxTile;
  const int64_t rows = part.weights.rows - row;
  const int size = tile_size(tokens);
  kernel_of<kWay>(part.weights.type, size)({
      .panel = part.weights.panel(panel.index),
      .cols = args.cols,
      .block = part.weights.block,
      .input = input_of(inputs, form_of<kWay>(format), first),
      .sums = inputs.sums_of(format) + first * (inputs.cols / sum_cols(format)),
      .scales = inputs.scales + first * (inputs.cols / kUnit),
      .counts = inputs.counts + first * (inputs.cols / kHalfCols),
      .bias = part.bias == nullptr ? nullptr : part.bias + row,
      .out = part.out + first * part.out_stride + row,
      .out_stride = part.out_stride,
      .rows = rows < kPanelRows ? rows : kPanelRows,
      .tokens = tokens,
      .accumulate = part.accumulate,
      .prefetches_panel = prefetches_panel,
      .prefetch = prefetch,
  });
}

// See Note: [Single token].
template <Way kWay>
void run_linear(const LinearArgs& args, const Launch& launch) {
  const int64_t tiles = divide_up(args.tokens, kMaxTile);
  const auto prepare = [&](int64_t copy, int64_t tile) {
    const Inputs inputs = inputs_in_scratch<kWay>(args, copy);
    const int size = tile_size(args.tokens - tile * kMaxTile);
    for (int t = 0; t < size; ++t) prepare_token<kWay>(args, inputs, tile, size, t);
  };
  const auto begin = lay_out_inputs(args, launch, tiles, prepare);
  const Inputs shared = inputs_in_scratch<kWay>(args, 0);
  const bool has_floats = shared.plain != nullptr || shared.scaled != nullptr;
  const int64_t token_bytes = shared.cols * (kWay == Way::kInt8 ? 1 : has_floats ? 4 : 2);
  const Grain grain = {.tile_tokens = kMaxTile, .token_bytes = token_bytes};
  const int64_t panels = count_panels(args);
  share_panels(args, launch, grain, begin, [&](const Share& share, int thread) {
    const Inputs inputs = inputs_in_scratch<kWay>(args, input_copy_of(args, thread));
    const int64_t prefetchers = prefetching_tiles(args, share);
    for (int64_t panel = share.first_panel; panel < share.end_panel; ++panel) {
      const Panel found = find_panel(args, panel);
      const PanelPrefetch prefetch = panel_prefetch(args, share, prefetchers, found, panel, panels);
      for (int64_t tile = share.first_tile; tile < share.end_tile; ++tile) {
        const int64_t n = tile - share.first_tile;
        multiply_panel<kWay>(args, inputs, found, tile, n == 0 && prefetch.own_panel,
                             prefetch.of_tile(n));
      }
    }
  });
}

// Inputs in 8 bits; for weights that are not integers they go to `linear`, as bfloat16.
void linear_int8(const LinearArgs& args, const Launch& launch, LinearOp* linear) {
  for_each_kind(args, kAreIntegers, [&](LinearArgs run, bool as_integers) {
    if (as_integers) return run_linear<Way::kInt8>(run, launch);
    run.input_type = without_integers(args.input_type);
    linear(run, launch);
  });
}

void linear_fma(const LinearArgs& args, const Launch& launch) {
  for_each_input(args, [&](const LinearArgs& run) {
    if (run.input_type == InputType::kInt8) return linear_int8(run, launch, linear_fma);
    if (run.input_type == InputType::kInt16) return run_linear<Way::kInt16>(run, launch);
    run_linear<Way::kFma>(run, launch);
  });
}
