// linear: chooses the kernels for a panel and a call's tokens, and runs the op.
#pragma once

#include "kernels/cpu/linear/floats.inl"
#include "kernels/cpu/linear/input.inl"
#include "kernels/cpu/linear/int16.inl"
#include "kernels/cpu/linear/int8.inl"
#include "kernels/cpu/linear/panels.inl"

// The kernels of each weight type in a call whose way is kWay.
template <Way kWay>
const FormatKernels& kernels_of(WeightType type) {
  static constexpr auto kKernels = per_format<FormatKernels>([]<PanelFormat kFormat>() {
    if constexpr (kWay == Way::kInt8 && !has_integers(kFormat)) return FormatKernels{};
    if constexpr (kWay != Way::kInt8 || has_integers(kFormat)) {
      return kernels_of_format<way_of(kWay, kFormat), kFormat>();
    }
  });
  return kKernels[static_cast<size_t>(type)];
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

// One panel times tokens [first, end) of the call.
template <Way kWay>
void multiply_panel(const LinearArgs& args, const Inputs& inputs, Panel panel, int64_t first,
                    int64_t end, bool prefetches_panel) {
  const LinearPart& part = *panel.part;
  const PanelFormat format = format_of(part.weights.type);
  const int64_t row = panel.index * kPanelRows;
  const int64_t rows = part.weights.rows - row;
  const FormatKernels& kernels = kernels_of<kWay>(part.weights.type);
  const Tile tile = {
      .panel = part.weights.panel(panel.index),
      .cols = args.cols,
      .block = part.weights.block,
      .inputs = {.x = input_of(inputs, form_of(kWay, format), first),
                 .sums = inputs.sums_of(format) + first * (inputs.cols / kernels.group),
                 .scales = inputs.scales + first * (inputs.cols / kUnit),
                 .counts = inputs.counts + first * (inputs.cols / kHalfCols)},
      .bias = part.bias == nullptr ? nullptr : part.bias + row,
      .out = part.out + first * part.out_stride + row,
      .out_stride = part.out_stride,
      .rows = rows < kPanelRows ? rows : kPanelRows,
      .tokens = end - first,
      .accumulate = part.accumulate,
      .prefetches_panel = prefetches_panel,
      .panel_bytes = panel_bytes(part.weights.type, args.cols, part.weights.block),
      .prefetch_distance = prefetch_distance(format, prefetches_to_l1()),
  };
  if (args.tokens > kernels.few_tokens) return kernels.many(tile, kernels);
  kernels.few[size_index(tile.tokens)](tile);
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
  share_panels(args, launch, grain, begin, [&](const Share& share, int thread) {
    const Inputs inputs = inputs_in_scratch<kWay>(args, input_copy_of(args, thread));
    const int64_t begin = share.first_tile * kMaxTile, last = share.end_tile * kMaxTile;
    const int64_t end = last < args.tokens ? last : args.tokens;
    for (int64_t panel = share.first_panel; panel < share.end_panel; ++panel) {
      const Panel found = find_panel(args, panel);
      const bool are_few = args.tokens <= kernels_of<kWay>(found.part->weights.type).few_tokens;
      const int64_t most = are_few ? kMaxTile : kMostTokens;
      for (int64_t token = begin; token < end; token += most) {
        const int64_t until = token + most < end ? token + most : end;
        multiply_panel<kWay>(args, inputs, found, token, until, token == begin);
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
