// The mixers that keep a state: Note [Recurrences] of model/decoder_spec.h.
#include <cmath>

#include "common/softplus.h"
#include "model/cpu/decoder.h"

namespace sinkstream {

namespace {

constexpr float kKeyEps = 1e-6f;  // of the norm of a delta net's keys: Qwen3-Next's code

}  // namespace

// Of the last layer, keeps the rows whose logits are wanted.
void Decoder::drop_unused_rows(std::initializer_list<MixerRows> mixed) {
  queries_ = 0;
  const auto move = [&](float* rows, int64_t width, const ForwardPlan::Span& span) {
    const int64_t row = span.row + span.count - span.wanted;
    move_rows(rows, row, rows, queries_, span.wanted, width);
  };
  for (const ForwardPlan::Span& span : plan_.spans) {
    move(hidden_, spec_.hidden_size, span);
    move(normed_, spec_.hidden_size, span);
    for (const MixerRows& each : mixed) move(each.rows, each.width, span);
    queries_ += span.wanted;
  }
}

void Decoder::find_states(int64_t layer, int64_t offset) {
  state_spans_.clear();
  for (const ForwardPlan::Span& span : plan_.spans) {
    const auto [read, write] = span.cache->state(layer, span.index);
    state_spans_.push_back({.row = span.row,
                            .count = span.count,
                            .read = reinterpret_cast<const float*>(read) + offset,
                            .write = reinterpret_cast<float*>(write) + offset});
  }
}

void Decoder::convolve(const BlockSpec& block, const LayerWeights& layer, int64_t index) {
  const int64_t hidden = spec_.hidden_size;
  const LinearPart in = {.weights = layer.conv_in,
                         .bias = layer.conv_in_bias,
                         .out = conv_inputs_,
                         .out_stride = 3 * hidden};
  multiply(mixer_input(block, layer), rows_, {&in, 1});
  find_states(index, 0);
  kernels_.convolve({.input = conv_inputs_ + 2 * hidden,
                     .input_gate = conv_inputs_,
                     .output_gate = conv_inputs_ + hidden,
                     .stride = 3 * hidden,
                     .weight = layer.conv,
                     .bias = layer.conv_bias,
                     .out = convolved_,
                     .spans = state_spans_.data(),
                     .span_count = std::ssize(state_spans_),
                     .channels = hidden,
                     .taps = block.recurrent()->conv_size},
                    launch_);
  // Of the rows in the last layer whose logits are not wanted, only the state.
  if (index + 1 == spec_.layers() && plan_.wanted < rows_) {
    drop_unused_rows({{convolved_, hidden}});
  }
  add_mixed(block, layer, convolved_, {.weights = layer.conv_out, .bias = layer.conv_out_bias});
}

void Decoder::recur(const BlockSpec& block, const LayerWeights& layer, int64_t index) {
  const RecurrentSpec& spec = *block.recurrent();
  const int64_t hidden = spec_.hidden_size;
  const int64_t channels = spec.channels(hidden), inner = spec.inner(hidden);
  const int64_t keys = spec.key_width();
  // Where a row has queries, keys and values: in this order, or the other way round.
  const int64_t query_at = spec.is_sum() ? inner + keys : 0;
  const int64_t key_at = spec.is_sum() ? inner : keys;
  const int64_t value_at = spec.is_sum() ? 0 : 2 * keys;
  const auto convolved_part = [&](const PackedMatrix& weights, int64_t at) {
    return LinearPart{.weights = weights, .out = conv_inputs_ + at, .out_stride = channels};
  };
  const LinearPart all[] = {
      convolved_part(layer.conv_q, query_at),
      convolved_part(layer.conv_k, key_at),
      convolved_part(layer.conv_v, value_at),
      {.weights = layer.state_gate, .out = state_gate_, .out_stride = inner},
      {.weights = layer.step, .out = decay_, .out_stride = spec.heads},
      {.weights = layer.strength, .out = strength_, .out_stride = spec.heads}};
  const auto parts = std::span<const LinearPart>(all).first(spec.is_sum() ? 5 : 6);
  multiply(mixer_input(block, layer), rows_, parts);
  find_states(index, 0);
  kernels_.convolve({.input = conv_inputs_,
                     .stride = channels,
                     .weight = layer.conv,
                     .bias = layer.conv_bias,
                     .out = convolved_,
                     .spans = state_spans_.data(),
                     .span_count = std::ssize(state_spans_),
                     .channels = channels,
                     .taps = spec.conv_size,
                     .silu = true},
                    launch_);
  write_steps(spec, layer);
  find_states(index, spec.conv_floats(hidden));
  kernels_.recur({.query = convolved_ + query_at,
                  .key = convolved_ + key_at,
                  .key_stride = channels,
                  .value = convolved_ + value_at,
                  .value_stride = channels,
                  .decay = decay_,
                  .strength = strength_,
                  .skip = layer.skip,
                  .out = recurred_,
                  .spans = state_spans_.data(),
                  .span_count = std::ssize(state_spans_),
                  .heads = spec.heads,
                  .key_heads = spec.key_heads,
                  .key_dim = spec.state_size,
                  .value_dim = spec.head_dim,
                  .heads_in_turn = spec.heads_in_turn,
                  .delta_rule = !spec.is_sum(),
                  .norm_eps = spec.is_sum() ? 0 : kKeyEps},
                 launch_);
  if (index + 1 == spec_.layers() && plan_.wanted < rows_) {
    drop_unused_rows({{recurred_, inner}, {state_gate_, inner}});
  }
  if (spec.is_sum()) {
    apply_gate(Activation::kSilu, state_gate_, recurred_, inner);
    normalize_groups(block.norm, layer.state_norm, spec.key_heads, inner);
  } else {
    normalize(block.norm, layer.state_norm, recurred_, recurred_, queries_ * spec.heads,
              spec.head_dim);
    apply_gate(Activation::kSilu, state_gate_, recurred_, inner);
  }
  add_mixed(block, layer, recurred_, {.weights = layer.conv_out});
}

// Normalizes parts of rows of `recurred_`, each with its part of the weights.
void Decoder::normalize_groups(const NormSpec& norm, const NormWeights& weights, int64_t groups,
                               int64_t width) {
  const int64_t dim = width / groups;
  for (int64_t first = 0; first < width; first += dim) {
    kernels_.norm({.input = recurred_ + first,
                   .input_stride = width,
                   .weight = weights.weight + first,
                   .bias = weights.bias == nullptr ? nullptr : weights.bias + first,
                   .out = recurred_ + first,
                   .out_stride = width,
                   .rows = queries_,
                   .dim = dim,
                   .eps = norm.eps,
                   .kind = norm.kind},
                  launch_);
  }
}

// Makes g and β of what the linear maps wrote in their place.
void Decoder::write_steps(const RecurrentSpec& spec, const LayerWeights& layer) {
  launch_.pool->run(rows_, [&](int64_t row, int) {
    for (int64_t head = 0; head < spec.heads; ++head) {
      float& decay = decay_[row * spec.heads + head];
      float& strength = strength_[row * spec.heads + head];
      decay =
          static_cast<float>(layer.rate[head] * softplus(double{decay} + layer.step_bias[head]));
      strength = static_cast<float>(1 / (1 + std::exp(-double{strength})));
    }
  });
}

}  // namespace sinkstream
