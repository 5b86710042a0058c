#include "model/cpu/decoder.h"

#include <algorithm>
#include <cmath>

#include "common/carver.h"
#include "common/check.h"
#include "model/cut.h"

namespace sinkstream {

namespace {

bool has_orders(const DecoderSpec& spec, const DecoderWeights& weights) {
  bool found = weights.output.order != nullptr;
  for_each_matrix(spec, weights,
                  [&](const PackedMatrix& matrix) { found |= matrix.order != nullptr; });
  return found;
}

// Whether what a branch of this block returns is changed before it is added.
bool has_branch(const BlockSpec& block) {
  return block.attention_post_norm || block.mlp_post_norm || block.residual_scale != 1;
}

}  // namespace

Decoder::Decoder(const DecoderSpec& spec, DecoderWeights weights, const Kernels& kernels,
                 ThreadPool* pool, const DecoderOptions& options)
    : spec_(spec),
      layers_(spec.cache_layers()),
      weights_(std::move(weights)),
      kernels_(kernels),
      launch_{pool},
      options_(options),
      views_(spec),
      plan_(options.max_tokens, 0, layers_.group_count()) {
  for (const LayerViews::View& view : views_.views()) {
    LayerRows& rows = rows_of_view_.emplace_back();
    rows.view = view;
    rows.pairs = views_.rope_of(view).pairs();
    rows.reserve(options.max_tokens);
  }
  carve_scratch(pool);
  slots_.resize(static_cast<size_t>(options.max_tokens));
  convolve_spans_.reserve(spec.has_states() ? static_cast<size_t>(options.max_tokens) : 0);
  const int64_t head_dim =
      spec.most_of_attention([](const AttentionSpec& each) { return each.head_dim; });
  ones_.assign(static_cast<size_t>(head_dim), 1);
  rotated_weight_.resize(static_cast<size_t>(head_dim));
}

void Decoder::carve_scratch(ThreadPool* pool) {
  const int64_t rows = options_.max_tokens;
  const int64_t q = spec_.most_query_size(), kv = spec_.most_kv_size();
  const int64_t inner = spec_.most_intermediate_size();
  int64_t widest = spec_.hidden_size;  // input of a linear map
  for_each_matrix(spec_, weights_,
                  [&](const PackedMatrix& matrix) { widest = std::max(widest, matrix.cols); });
  const auto has = [&](const auto& test) { return std::ranges::any_of(spec_.blocks, test); };
  const bool has_branches = has(has_branch);
  const bool has_temperatures = has([](const BlockSpec& block) {
    return block.recurrent() == nullptr && block.attention().temperature != 0;
  });
  const bool turns_further = has([](const BlockSpec& block) {
    return block.recurrent() == nullptr && block.attention().qk_norm == QkNorm::kRotatedHead;
  });
  const int64_t most_pairs = std::ranges::max(rows_of_view_, {}, &LayerRows::pairs).pairs;
  const auto carve_attention = [&](Carver<64> carver) {
    query_ = carver.take<float>(rows * q);
    key_ = carver.take<float>(rows * kv);
    value_ = carver.take<float>(rows * kv);
    query_window_ = carver.take<float>(rows * q);
    query_sink_ = carver.take<float>(rows * q);
    attended_ = carver.take<float>(rows * q);
    return carver.used();
  };
  const int64_t chosen = spec_.most_chosen(), hidden = spec_.hidden_size;
  const auto carve_convolution = [&](Carver<64> carver) {
    conv_inputs_ = carver.take<float>(spec_.has_states() ? rows * 3 * hidden : 0);
    convolved_ = carver.take<float>(spec_.has_states() ? rows * hidden : 0);
    return carver.used();
  };
  const auto carve_feed_forward = [&](Carver<64> carver) {
    gate_ = carver.take<float>(rows * inner);
    up_ = carver.take<float>(rows * inner);
    if (chosen == 0) return carver.used();
    router_logits_ = carver.take<float>(rows * spec_.most_experts());
    chosen_ = carver.take<int32_t>(rows * chosen);
    route_weights_ = carver.take<float>(rows * chosen);
    expert_outputs_ = carver.take<float>(rows * chosen * hidden);
    shared_ = carver.take<float>(rows * hidden);
    shared_gate_ = carver.take<float>(rows);
    return carver.used();
  };
  expert_rows_.reserve(rows * chosen, spec_.most_experts());
  expert_parts_.reserve(static_cast<size_t>(2 * spec_.most_experts()));
  ordered_parts_.reserve(chosen > 0 ? 2 : 0);
  const int64_t most_of_block =
      std::max({carve_attention(Carver<64>(nullptr)), carve_convolution(Carver<64>(nullptr)),
                carve_feed_forward(Carver<64>(nullptr))});
  const auto carve = [&](Carver<64> carver) {
    hidden_ = carver.take<float>(rows * spec_.hidden_size);
    normed_ = carver.take<float>(rows * spec_.hidden_size);
    branch_ = has_branches ? carver.take<float>(rows * spec_.hidden_size) : nullptr;
    std::byte* const of_block = carver.take<std::byte>(most_of_block);
    carve_attention(Carver<64>(of_block));
    carve_convolution(Carver<64>(of_block));
    carve_feed_forward(Carver<64>(of_block));
    angles_ = carver.take<float>(rows * views_.floats_per_row());
    kept_.cos = carver.take<float>(rows * most_pairs);
    kept_.sin = carver.take<float>(rows * most_pairs);
    difference_.cos = carver.take<float>(turns_further ? rows * most_pairs : 0);
    difference_.sin = carver.take<float>(turns_further ? rows * most_pairs : 0);
    query_factors_ = has_temperatures ? carver.take<float>(rows) : nullptr;
    ordered_ = has_orders(spec_, weights_) ? carver.take<float>(rows * widest) : nullptr;
    linear_scratch_ = carver.take<std::byte>(linear_scratch_bytes(rows, widest, pool->threads()));
    return carver.used();
  };
  arena_ = Buffer::sparse(carve(Carver<64>(nullptr)), "the decoder's scratch");
  carve(Carver<64>(arena_.data()));
  for (LayerRows& each : rows_of_view_) {
    const AngleRows by_rank = angles(each.view.before, each.pairs);
    each.sink_cos = by_rank.cos;
    each.sink_sin = by_rank.sin;
  }
  const int64_t attention_bytes = spec_.most_of_attention([&](const AttentionSpec& attention) {
    return attention_scratch_bytes(attention.heads, attention.head_dim, options_.pages,
                                   pool->threads());
  });
  attention_scratch_ = Buffer::sparse(attention_bytes, "the attention's scratch");
}

void Decoder::forward(std::span<const ForwardSpan> spans, float* logits) {
  begin(spans);
  kernels_.embedding({.ids = plan_.ids.data(),
                      .tokens = rows_,
                      .table = weights_.embedding,
                      .out = hidden_,
                      .scale = spec_.embedding_scale},
                     launch_);
  for (int64_t layer = 0; layer < spec_.layers(); ++layer) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    const BlockSpec& block = spec_.block(layer);
    if (block.recurrent() != nullptr) {
      convolve(block, weights, layer);
    } else {
      attend(block, weights, layer);
    }
    if (queries_ > 0) transform(block, weights);
  }
  if (queries_ > 0) write_logits(logits);
}

void Decoder::evict_range(SequenceCache* cache, int64_t begin, int64_t end) {
  const std::vector<Cut> cuts = plan_cuts(*cache, begin, end);
  const int64_t distance = cuts.front().distance;
  for (const LayerViews::Rope& rope : views_.ropes()) {
    const AngleRows angles = index_angles(rope);
    rope.shift_angles.fill(&distance, 1, angles.cos, angles.sin);
  }
  for (int64_t layer = 0; layer < spec_.layers(); ++layer) {
    if (spec_.block(layer).recurrent() != nullptr) continue;  // nothing leaves a state
    const Cut& cut = cuts[static_cast<size_t>(layers_.layer_in_group(layer).group)];
    const LayerViews::Rope& rope = views_.rope_of(layer);
    std::vector<Slot> from(cut.older), to(cut.older);
    for (int64_t i = 0; i < cut.older;
         ++i) {  // newest first, so that none is overwritten too early
      from[i] = cache->slot(layer, cut.first + cut.older - 1 - i);
      to[i] = cache->slot(layer, cut.first + cut.older - 1 - i + distance);
    }
    EvictArgs args;
    args.from = from.data();
    args.to = to.data();
    args.rows = cut.older;
    args.shape = page_shape(layer);
    args.rotation = rotation(rope.spec, index_angles(rope));
    kernels_.evict(args, launch_);
  }
  for (int64_t group = 0; group < layers_.group_count(); ++group) {
    cache->cut_group(group, cuts[static_cast<size_t>(group)].begin);
  }
}

void Decoder::begin(std::span<const ForwardSpan> spans) {
  plan_.make(spans);
  rows_ = queries_ = plan_.rows();
  SINKSTREAM_CHECK(rows_ >= 1 && rows_ <= max_tokens(), "a forward pass has ", rows_, " tokens");
  for (const LayerViews::Rope& rope : views_.ropes()) {
    const AngleRows angles = index_angles(rope);
    rope.angles.fill(plan_.index.data(), rows_, angles.cos, angles.sin);
  }
  for (LayerRows& rows : rows_of_view_) {
    rows.keep_all(plan_);
    views_.rope_of(rows.view).angles.fill(rows.rank.data(), rows_, rows.sink_cos, rows.sink_sin);
  }
}

void Decoder::drop_unused_rows(LayerRows* rows) {
  const int64_t hidden = spec_.hidden_size;
  const AngleRows angles = index_angles(views_.rope_of(rows->view));
  queries_ = rows->drop_unused_rows(plan_, [&](int64_t from, int64_t to, int64_t count) {
    move_rows(hidden_, from, hidden_, to, count, hidden);
    move_rows(normed_, from, normed_, to, count, hidden);
    move_rows(angles.cos, from, kept_.cos, to, count, rows->pairs);
    move_rows(angles.sin, from, kept_.sin, to, count, rows->pairs);
  });
}

// What the mixer of a block reads, of all rows.
const float* Decoder::mixer_input(const BlockSpec& block, const LayerWeights& layer) {
  if (!block.attention_norm) return hidden_;
  normalize(block.norm, layer.attention_norm, hidden_, normed_, rows_, spec_.hidden_size);
  return normed_;
}

void Decoder::attend(const BlockSpec& block, const LayerWeights& layer, int64_t index) {
  LayerRows& rows = rows_of_view_[views_.index_of(index)];
  write_queries_keys_values(block, layer, index + 1 == spec_.layers(), &rows);
  rotate_queries(block, layer, rows);
  const ForwardPlan::Group& plan = plan_.groups[static_cast<size_t>(rows.view.group)];
  for (size_t r = 0; r < plan.rounds.size(); ++r) {
    append(rows, plan.rounds[r], index);
    if (rows.round_queries[r].count > 0) {
      attend(block.attention(), &rows, rows.round_queries[r], index);
    }
  }
  add_mixed(block, layer, attended_, {.weights = layer.o, .bias = layer.o_bias});
}

// Adds what `map` makes of a mixer's rows to the residual stream.
void Decoder::add_mixed(const BlockSpec& block, const LayerWeights& layer, const float* mixed,
                        const LinearPart& map) {
  if (queries_ == 0) return;
  // The MLP of a parallel block reads what the mixer has not yet been added to.
  if (block.parallel && block.mlp_norm) {
    normalize(block.norm, layer.mlp_norm, hidden_, normed_, queries_, spec_.hidden_size);
  }
  add_to_hidden(block, mixed, map,
                block.attention_post_norm ? &layer.attention_post_norm : nullptr);
}

// Of the rows in the last layer whose logits are not wanted, only keys and values.
void Decoder::write_queries_keys_values(const BlockSpec& block, const LayerWeights& layer,
                                        bool is_last, LayerRows* rows) {
  const AttentionSpec& attention = block.attention();
  const int64_t q = attention.query_size(), kv = attention.kv_size();
  const float* const input = mixer_input(block, layer);
  const LinearPart parts[] = {
      {.weights = layer.k, .bias = layer.k_bias, .out = key_, .out_stride = kv},
      {.weights = layer.v, .bias = layer.v_bias, .out = value_, .out_stride = kv},
      {.weights = layer.q, .bias = layer.q_bias, .out = query_, .out_stride = q}};
  const std::span<const LinearPart> all = parts;
  if (is_last && plan_.wanted < rows_) {
    multiply(input, rows_, all.first(2));
    drop_unused_rows(rows);
    if (queries_ > 0) multiply(input, queries_, all.last(1));
  } else {
    multiply(input, rows_, all);
  }
  if (attention.clip > 0) {
    clamp(query_, queries_, q, attention.clip);
    clamp(key_, rows_, kv, attention.clip);
    clamp(value_, rows_, kv, attention.clip);
  }
  if (attention.qk_norm == QkNorm::kRotatedHead) {
    normalize_heads(block, {.weight = ones_.data()}, key_, rows_, kv);
  } else if (attention.qk_norm != QkNorm::kNone) {
    normalize_heads(block, layer.q_norm, query_, queries_, q);
    normalize_heads(block, layer.k_norm, key_, rows_, kv);
  }
}

// Note: [Norms after the rotation]
// A rotation changes no head's mean square, so keys are normalized before it, like others, but
// without weights: a key can then be rotated further, as `evict_range` does. The weights of keys
// multiply queries instead, together with their own. Weights fit only heads that are rotated by
// rank, as the model reads them. Keys of the window are rotated by their index: all of them further
// by the same angles, by which the query is then rotated further, too.
void Decoder::normalize_rotated(const BlockSpec& block, const LayerWeights& layer, float* queries) {
  const AttentionSpec& attention = block.attention();
  for (int64_t i = 0; i < attention.head_dim; ++i) {
    rotated_weight_[static_cast<size_t>(i)] = layer.q_norm.weight[i] * layer.k_norm.weight[i];
  }
  normalize_heads(block, {.weight = rotated_weight_.data()}, queries, queries_,
                  attention.query_size());
}

Decoder::AngleRows Decoder::difference(const AngleRows& from, const AngleRows& to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    difference_.cos[i] = to.cos[i] * from.cos[i] + to.sin[i] * from.sin[i];
    difference_.sin[i] = to.sin[i] * from.cos[i] - to.cos[i] * from.sin[i];
  }
  return difference_;
}

// By index for the window, by rank for the sinks.
void Decoder::rotate_queries(const BlockSpec& block, const LayerWeights& layer,
                             const LayerRows& rows) {
  const AttentionSpec& attention = block.attention();
  const LayerViews::Rope& rope = views_.rope_of(rows.view);
  RopeArgs args;
  args.input = query_;
  args.input_stride = attention.query_size();
  args.rows = queries_;
  args.heads = attention.heads;
  args.head_dim = attention.head_dim;
  if (attention.temperature != 0) {
    for (int64_t row = 0; row < queries_; ++row) {
      const int64_t steps = rows.rank[static_cast<size_t>(row)] / attention.temperature_length;
      query_factors_[row] = static_cast<float>(1 + double{attention.temperature} *
                                                       std::log1p(static_cast<double>(steps)));
    }
    args.factors = query_factors_;
  }
  const AngleRows by_rank = {rows.sink_cos, rows.sink_sin};
  AngleRows by_index = queries_ < rows_ ? kept_ : index_angles(rope);
  args.out = query_sink_;
  args.rotation = rotation(rope.spec, by_rank);
  kernels_.rope(args, launch_);
  if (attention.qk_norm == QkNorm::kRotatedHead) {
    normalize_rotated(block, layer, query_sink_);
    args.input = query_sink_;
    by_index = difference(by_rank, by_index, queries_ * rows.pairs);
  }
  args.out = query_window_;
  args.rotation = rotation(rope.spec, by_index);
  kernels_.rope(args, launch_);
}

void Decoder::append(const LayerRows& rows, const ForwardPlan::Round& round, int64_t layer) {
  const int64_t kv = spec_.block(layer).attention().kv_size();
  const LayerViews::Rope& rope = views_.rope_of(rows.view);
  const AngleRows angles = index_angles(rope);
  const ForwardPlan::Group& plan = plan_.groups[static_cast<size_t>(rows.view.group)];
  Slot* slot = slots_.data();
  for (size_t i = round.piece; i < round.piece + round.count; ++i) {
    const ForwardPlan::Piece& piece = plan.pieces[i];
    for (int64_t t = piece.index; t < piece.index + piece.count; ++t) {
      *slot++ = piece.cache->slot(layer, t);
    }
  }
  AppendArgs args;
  args.keys = key_ + round.row * kv;
  args.values = value_ + round.row * kv;
  args.key_stride = args.value_stride = kv;
  args.slots = slots_.data();
  args.rows = round.rows;
  args.shape = page_shape(layer);
  const int64_t before = round.row * rows.pairs;
  args.rotation = rotation(rope.spec, {angles.cos + before, angles.sin + before});
  kernels_.append(args, launch_);
}

void Decoder::attend(const AttentionSpec& attention, LayerRows* rows, const RoundQueries& queries,
                     int64_t layer) {
  const int64_t q = attention.query_size();
  for (size_t i = queries.span; i < queries.span + queries.spans; ++i) {
    rows->spans[i].sink_pages = rows->caches[i]->sink_pages(layer);
    rows->spans[i].window_pages = rows->caches[i]->window_pages(layer);
  }
  AttentionArgs args;
  args.query_window = query_window_ + queries.row * q;
  args.query_sink = query_sink_ + queries.row * q;
  args.out = attended_ + queries.row * q;
  args.first = rows->first.data() + queries.row;
  args.rank = rows->rank.data() + queries.row;
  args.spans = rows->spans.data() + queries.span;
  args.span_count = static_cast<int64_t>(queries.spans);
  args.rows = queries.count;
  args.heads = attention.heads;
  args.shape = page_shape(layer);
  args.sink_type = options_.cache_type;
  args.scale = attention.scale;
  args.soft_cap = attention.soft_cap;
  args.slopes = attention.slopes.empty() ? nullptr : attention.slopes.data();
  args.sink_logits = weights_.layers[static_cast<size_t>(layer)].sink_logits;
  args.scratch = attention_scratch_.data();
  args.scratch_pages = options_.pages;
  kernels_.attention(args, launch_);
}

void Decoder::transform(const BlockSpec& block, const LayerWeights& layer) {
  const float* input = normed_;
  if (!block.parallel) {
    if (block.mlp_norm) {
      normalize(block.norm, layer.mlp_norm, hidden_, normed_, queries_, spec_.hidden_size);
    } else {
      input = hidden_;
    }
  }
  const NormWeights* const post_norm = block.mlp_post_norm ? &layer.mlp_post_norm : nullptr;
  if (const ExpertsSpec* const experts = block.experts()) {
    mix(block, *experts, layer.experts, input);
    if (has_branch(block)) add_branch(block, post_norm);
    return;
  }
  activate_inner(block.dense(), layer.mlp, input);
  add_to_hidden(block, gate_, {.weights = layer.mlp.down, .bias = layer.mlp.down_bias}, post_norm);
}

// Writes [queries, intermediate] to `gate_`: what the down projection of an MLP reads.
void Decoder::activate_inner(const DenseSpec& spec, const MlpWeights& mlp, const float* input) {
  const int64_t inner = spec.intermediate_size;
  const LinearPart parts[] = {
      {.weights = mlp.gate, .bias = mlp.gate_bias, .out = gate_, .out_stride = inner},
      {.weights = mlp.up, .bias = mlp.up_bias, .out = up_, .out_stride = inner}};
  multiply(input, queries_, std::span(parts).last(spec.gated ? 2 : 1));
  activate(spec, queries_);
}

// `rows`: of `gate_` and `up_`.
void Decoder::activate(const DenseSpec& spec, int64_t rows) {
  kernels_.activation({.gate = spec.gated ? gate_ : up_,
                       .up = spec.gated ? up_ : nullptr,
                       .out = gate_,
                       .stride = spec.intermediate_size,
                       .rows = rows,
                       .dim = spec.intermediate_size,
                       .kind = spec.activation,
                       .xielu = spec.xielu_numbers()},
                      launch_);
}

// Adds the experts' outputs to the residual stream, or writes them to the block's branch.
void Decoder::mix(const BlockSpec& block, const ExpertsSpec& spec, const ExpertsWeights& weights,
                  const float* input) {
  const int64_t hidden = spec_.hidden_size;
  route(spec, weights, input);
  multiply_experts(spec, weights, input);
  if (spec.shared_size > 0) {
    activate_inner(spec.shared(), weights.shared, input);
    const LinearPart down = {.weights = weights.shared.down,
                             .bias = weights.shared.down_bias,
                             .out = shared_,
                             .out_stride = hidden};
    multiply(gate_, queries_, {&down, 1});
  }
  if (spec.shared_gate) {
    const LinearPart gate = {.weights = weights.shared_gate, .out = shared_gate_, .out_stride = 1};
    multiply(input, queries_, {&gate, 1});
  }
  const bool has_branch_of_its_own = has_branch(block);
  kernels_.combine({.outputs = expert_outputs_,
                    .positions = expert_rows_.positions(),
                    .weights = route_weights_,
                    .chosen = spec.chosen,
                    .shared = spec.shared_size > 0 ? shared_ : nullptr,
                    .shared_gate = spec.shared_gate ? shared_gate_ : nullptr,
                    .out = has_branch_of_its_own ? branch_ : hidden_,
                    .accumulate = !has_branch_of_its_own,
                    .rows = queries_,
                    .dim = hidden},
                   launch_);
}

// The inputs of the router are never rounded: an expert chosen otherwise costs more than a sum.
void Decoder::route(const ExpertsSpec& spec, const ExpertsWeights& weights, const float* input) {
  const LinearPart part = {.weights = weights.router,
                           .bias = weights.router_bias,
                           .out = router_logits_,
                           .out_stride = spec.experts};
  multiply(input, queries_, {&part, 1}, InputType::kFloat32);
  kernels_.route({.logits = router_logits_,
                  .choice_bias = weights.choice_bias,
                  .expert_scale = weights.expert_scale,
                  .rows = queries_,
                  .rules = spec,
                  .ids = chosen_,
                  .weights = route_weights_},
                 launch_);
  expert_rows_.make({chosen_, static_cast<size_t>(queries_ * spec.chosen)}, spec.chosen,
                    spec.experts);
}

// Each expert multiplies the tokens that chose it, and no others are read.
void Decoder::multiply_experts(const ExpertsSpec& spec, const ExpertsWeights& weights,
                               const float* input) {
  const int64_t hidden = spec_.hidden_size, inner = spec.expert.intermediate_size;
  expert_parts_.clear();
  for (const ExpertRows::Run& run : expert_rows_.runs()) {
    LinearPart part = {.out_stride = inner};
    if (queries_ > 1) {  // with one, all experts share the call's input
      part.input = input;
      part.input_stride = hidden;
      part.tokens = run.count;
      part.row_of = expert_rows_.token_of() + run.first;
    }
    const auto add = [&](const PackedMatrix& matrix, const float* bias, float* out) {
      part.weights = matrix;
      part.bias = bias;
      part.out = out + run.first * inner;
      expert_parts_.push_back(part);
    };
    const MlpWeights& mlp = weights.each[static_cast<size_t>(run.expert)];
    if (spec.expert.gated) add(mlp.gate, mlp.gate_bias, gate_);
    add(mlp.up, mlp.up_bias, up_);
  }
  multiply(input, queries_, expert_parts_);
  activate(spec.expert, queries_ * spec.chosen);
  expert_parts_.clear();
  for (const ExpertRows::Run& run : expert_rows_.runs()) {
    const MlpWeights& mlp = weights.each[static_cast<size_t>(run.expert)];
    expert_parts_.push_back({.weights = mlp.down,
                             .bias = mlp.down_bias,
                             .out = expert_outputs_ + run.first * hidden,
                             .out_stride = hidden,
                             .input = gate_ + run.first * inner,
                             .input_stride = inner,
                             .tokens = run.count});
  }
  multiply(gate_, queries_, expert_parts_);
}

// `post_norm`: null if the map's outputs are added as they are.
void Decoder::add_to_hidden(const BlockSpec& block, const float* input, const LinearPart& map,
                            const NormWeights* post_norm) {
  LinearPart part = map;
  part.out_stride = spec_.hidden_size;
  const bool is_direct = post_norm == nullptr && block.residual_scale == 1;
  part.out = is_direct ? hidden_ : branch_;
  part.accumulate = is_direct;
  multiply(input, queries_, {&part, 1});
  if (!is_direct) add_branch(block, post_norm);
}

// Adds `branch_` to the residual stream.
void Decoder::add_branch(const BlockSpec& block, const NormWeights* post_norm) {
  const int64_t hidden = spec_.hidden_size;
  if (post_norm != nullptr) {
    normalize(block.norm, *post_norm, branch_, branch_, queries_, hidden);
  }
  kernels_.add_scaled({.input = branch_,
                       .scale = block.residual_scale,
                       .out = hidden_,
                       .rows = queries_,
                       .dim = hidden},
                      launch_);
}

void Decoder::write_logits(float* logits) {
  normalize(spec_.final_norm, weights_.final_norm, hidden_, normed_, queries_, spec_.hidden_size);
  const LinearPart part[] = {{.weights = weights_.output,
                              .bias = weights_.output_bias,
                              .out = logits,
                              .out_stride = spec_.vocab_size}};
  multiply(normed_, queries_, part);
  if (spec_.logit_scale != 1 || spec_.logit_soft_cap != 0) {
    kernels_.soft_cap({.values = logits,
                       .rows = queries_,
                       .dim = spec_.vocab_size,
                       .scale = spec_.logit_scale,
                       .cap = spec_.logit_soft_cap},
                      launch_);
  }
}

void Decoder::normalize(const NormSpec& norm, const NormWeights& weights, const float* input,
                        float* out, int64_t rows, int64_t dim) {
  kernels_.norm({.input = input,
                 .input_stride = dim,
                 .weight = weights.weight,
                 .bias = weights.bias,
                 .out = out,
                 .out_stride = dim,
                 .rows = rows,
                 .dim = dim,
                 .eps = norm.eps,
                 .kind = norm.kind},
                launch_);
}

// `heads`: [rows, width], of queries or of keys.
void Decoder::normalize_heads(const BlockSpec& block, const NormWeights& weights, float* heads,
                              int64_t rows, int64_t width) {
  const bool is_full = block.attention().qk_norm == QkNorm::kFull;
  const int64_t dim = is_full ? width : block.attention().head_dim;
  normalize(block.norm, weights, heads, heads, rows * (width / dim), dim);
}

void Decoder::clamp(float* values, int64_t rows, int64_t width, float limit) {
  kernels_.clamp({.values = values, .rows = rows, .dim = width, .limit = limit}, launch_);
}

Decoder::AngleRows Decoder::angles(int64_t before, int64_t pairs) const {
  float* const cos = angles_ + before * options_.max_tokens;
  return {cos, cos + pairs * options_.max_tokens};
}

Rotation Decoder::rotation(const RopeSpec& rope, const AngleRows& angles) {
  return {.cos = angles.cos,
          .sin = angles.sin,
          .rotary_dim = rope.rotary_dim(),
          .pairing = rope.pairing};
}

void Decoder::multiply(const float* input, int64_t tokens, std::span<const LinearPart> parts) {
  multiply(input, tokens, parts, options_.input_type);
}

// Adjacent parts whose columns have the same order are one call.
void Decoder::multiply(const float* input, int64_t tokens, std::span<const LinearPart> parts,
                       InputType input_type) {
  while (!parts.empty()) {
    const LinearPart& first = parts[0];
    const int32_t* const order = first.weights.order;
    const auto end = std::ranges::find_if(parts, [&](const LinearPart& part) {
      return part.weights.order != order ||
             (order != nullptr && (part.input != first.input || part.row_of != first.row_of));
    });
    std::span<const LinearPart> run = parts.first(static_cast<size_t>(end - parts.begin()));
    parts = parts.subspan(run.size());
    LinearArgs args = {.input = input,
                       .input_stride = first.weights.cols,
                       .tokens = tokens,
                       .cols = first.weights.cols,
                       .input_type = input_type,
                       .scratch = linear_scratch_};
    if (order != nullptr) {
      if (first.input != nullptr) {  // they read the call's instead
        args.input = first.input;
        args.input_stride = first.input_stride;
        args.tokens = first.tokens;
        args.row_of = first.row_of;
        ordered_parts_.assign(run.begin(), run.end());
        for (LinearPart& part : ordered_parts_) part.input = nullptr;
        run = ordered_parts_;
      }
      put_in_order(order, &args);
    }
    args.parts = run.data();
    args.part_count = std::ssize(run);
    kernels_.linear(args, launch_);
  }
}

// Lets a call read its inputs in the order of a matrix's columns.
void Decoder::put_in_order(const int32_t* order, LinearArgs* args) {
  launch_.pool->run(args->tokens, [&](int64_t token, int) {
    const int64_t row = args->row_of == nullptr ? token : args->row_of[token];
    const float* const from = args->input + row * args->input_stride;
    float* const to = ordered_ + token * args->cols;
    for (int64_t i = 0; i < args->cols; ++i) to[i] = from[order[i]];
  });
  args->input = ordered_;
  args->input_stride = args->cols;
  args->row_of = nullptr;
}

}  // namespace sinkstream
