// CudaLayers: the feed-forward of a layer, with or without experts.
#include "model/cuda/layers.h"

namespace sinkstream {

void CudaLayers::transform(const CudaStep& step, int64_t layer, const std::byte* input) {
  const BlockSpec& block = spec_.block(layer);
  const CudaLayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t rows = step.launches.rows;
  if (const ExpertsSpec* const experts = block.experts()) {
    partials_ = mix(*experts, weights.experts, step.block.group(0).tokens, input, rows);
  } else {
    partials_ = transform(block.dense(), weights.mlp, input, rows, partials_memory_);
  }
  residual_ = {.is_pending = true,
               .post_norm = weights.mlp_post_norm,
               .norm = block.norm,
               .scale = block.residual_scale};
}

cuda::Partials CudaLayers::transform(const DenseSpec& spec, const CudaMlpWeights& weights,
                                     const void* input, int64_t rows, float* to) {
  const cuda::Partials inner = multiply(weights.gate_up, weights.gate_up_bias, input,
                                        spec_.hidden_size, rows, partials_memory_);
  activate(spec, inner, rows);
  return multiply(weights.down, weights.down_bias, activated_, spec.intermediate_size, rows, to);
}

// Writes activated_.
void CudaLayers::activate(const DenseSpec& spec, const cuda::Partials& input, int64_t rows) {
  check(plugin_.ops.activation({.input = input,
                                .activation = spec.activation,
                                .is_gated = spec.gated,
                                .rows = rows,
                                .dim = spec.intermediate_size,
                                .out = activated_,
                                .out_stride = spec.intermediate_size},
                               stream_),
        "activation");
}

// The host does not know which experts are chosen: blocks of threads read that from device memory,
// so that a captured step serves every choice.
cuda::Partials CudaLayers::mix(const ExpertsSpec& spec, const CudaExpertsWeights& weights,
                               const cuda::TokenRow* tokens, const std::byte* input, int64_t rows) {
  const int64_t hidden = spec_.hidden_size;
  route(spec, weights, tokens, input, rows);
  const int64_t run_rows = cuda::rows_of_runs(rows, spec.chosen, spec.experts);
  check(plugin_.ops.group_rows({.ids = experts_.ids,
                                .rows = rows,
                                .chosen = spec.chosen,
                                .experts = spec.experts,
                                .run_rows = run_rows,
                                .positions = experts_.positions,
                                .row_of = experts_.row_of,
                                .runs = experts_.runs,
                                .run_count = experts_.run_count},
                               stream_),
        "group_rows");
  cuda::CombineArgs sums;
  if (spec.shared_size > 0) {
    sums.shared = transform(spec.shared(), weights.shared, input, rows, experts_.shared);
    if (spec.shared_gate) {
      sums.shared_gate =
          multiply(weights.shared_gate, nullptr, input, hidden, rows, experts_.shared_gate);
    }
  }
  const cuda::Partials inner =
      multiply_each(weights.gate_up, input, hidden, experts_.row_of, run_rows, rows);
  activate(spec.expert, inner, rows * spec.chosen);
  sums.outputs = multiply_each(weights.down, activated_, spec.expert.intermediate_size, nullptr,
                               run_rows, rows);
  sums.positions = experts_.positions;
  sums.weights = experts_.weights;
  sums.tokens = tokens;
  sums.chosen = spec.chosen;
  sums.out = experts_.sums;
  sums.rows = rows;
  sums.dim = hidden;
  check(plugin_.ops.combine(sums, stream_), "combine");
  return {.data = experts_.sums, .splits = 1, .rows = rows, .stride = hidden};
}

void CudaLayers::route(const ExpertsSpec& spec, const CudaExpertsWeights& weights,
                       const cuda::TokenRow* tokens, const std::byte* input, int64_t rows) {
  const cuda::Partials logits =
      multiply(weights.router, nullptr, input, spec_.hidden_size, 2 * rows, partials_memory_);
  check(plugin_.ops.route({.logits = logits,
                           .rests = from_row(logits, rows),
                           .bias = weights.router_bias,
                           .choice_bias = weights.choice_bias,
                           .expert_scale = weights.expert_scale,
                           .tokens = tokens,
                           .rows = rows,
                           .rules = spec,
                           .ids = experts_.ids,
                           .weights = experts_.weights},
                          stream_),
        "route");
}

// `rows`: tokens. By position, in partials_memory_.
cuda::Partials CudaLayers::multiply_each(const CudaExpertMap& map, const void* input,
                                         int64_t input_stride, const int32_t* row_of,
                                         int64_t run_rows, int64_t rows) {
  const cuda::Partials partials = {.data = partials_memory_,
                                   .splits = map.splits(),
                                   .rows = rows * map.chosen,
                                   .stride = map.first.rows()};
  int64_t column = 0;  // of the partials: the part's first row
  for (const cuda::TiledMatrix& part : map.first.parts) {
    cuda::GroupedLinearArgs args;
    args.weights = part;
    args.expert_bytes = map.expert_bytes;
    args.splits = partials.splits;
    if (map.bias != nullptr) args.bias = map.bias + column;
    args.bias_stride = partials.stride;
    args.input = input;
    args.input_stride = input_stride;
    args.row_of = row_of;
    args.runs = experts_.runs;
    args.run_count = experts_.run_count;
    args.most_runs = cuda::most_runs(rows, map.chosen, map.experts, run_rows);
    args.run_rows = run_rows;
    args.out = partials_memory_ + column;
    args.out_rows = partials.rows;
    args.out_stride = partials.stride;
    check(plugin_.ops.linear_grouped(args, stream_), "linear_grouped");
    column += part.rows;
  }
  return partials;
}

}  // namespace sinkstream
