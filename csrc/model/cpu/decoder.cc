#include "model/cpu/decoder.h"

#include <algorithm>
#include <cstring>

#include "common/carver.h"
#include "common/check.h"
#include "model/cut.h"

namespace sinkstream {

namespace {

bool has_orders(const DecoderWeights& weights) {
  for (const LayerWeights& layer : weights.layers) {
    for (const PackedMatrix* matrix :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      if (matrix->order != nullptr) return true;
    }
  }
  return weights.output.order != nullptr;
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
      angles_(spec.inverse_frequencies, spec.attention_factor),
      shift_angles_(spec.inverse_frequencies),
      plan_(options.max_tokens, 0, layers_.group_count()),
      groups_(static_cast<size_t>(layers_.group_count())) {
  const int64_t rows = options.max_tokens;
  const int64_t q = spec.query_size(), kv = spec.kv_size(), pairs = spec.rotary_dim() / 2;
  const int64_t widest = std::max({spec.hidden_size, spec.intermediate_size, q});
  const auto carve = [&](Carver<64> carver) {
    hidden_ = carver.take<float>(rows * spec.hidden_size);
    normed_ = carver.take<float>(rows * spec.hidden_size);
    query_ = carver.take<float>(rows * q);
    key_ = carver.take<float>(rows * kv);
    value_ = carver.take<float>(rows * kv);
    query_window_ = carver.take<float>(rows * q);
    query_sink_ = carver.take<float>(rows * q);
    attended_ = carver.take<float>(rows * q);
    gate_ = carver.take<float>(rows * spec.intermediate_size);
    up_ = carver.take<float>(rows * spec.intermediate_size);
    window_cos_ = carver.take<float>(rows * pairs);
    window_sin_ = carver.take<float>(rows * pairs);
    kept_cos_ = carver.take<float>(rows * pairs);
    kept_sin_ = carver.take<float>(rows * pairs);
    for (GroupRows& group : groups_) {
      group.sink_cos = carver.take<float>(rows * pairs);
      group.sink_sin = carver.take<float>(rows * pairs);
    }
    ordered_ = has_orders(weights_) ? carver.take<float>(rows * widest) : nullptr;
    linear_scratch_ = carver.take<std::byte>(linear_scratch_bytes(rows, widest, pool->threads()));
    return carver.used();
  };
  arena_ = Buffer(carve(Carver<64>(nullptr)), "the decoder's scratch", pool);
  carve(Carver<64>(arena_.data()));
  attention_scratch_ =
      Buffer(attention_scratch_bytes(spec.heads, spec.head_dim, options.pages, pool->threads()),
             "the attention's scratch", pool);
  slots_.resize(rows);
  for (GroupRows& group : groups_) {
    group.rank.reserve(rows);
    group.first.reserve(rows);
    group.round_queries.reserve(rows);
    group.spans.reserve(rows);
    group.caches.reserve(rows);
  }
}

void Decoder::forward(std::span<const ForwardSpan> spans, float* logits) {
  plan_.make(spans);
  compute_angles();
  for (size_t g = 0; g < groups_.size(); ++g) keep_all_rows(plan_.groups[g], &groups_[g]);
  kernels_.embedding(
      {.ids = plan_.ids.data(), .tokens = rows_, .table = weights_.embedding, .out = hidden_},
      launch_);
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    attend(weights_.layers[layer], layer);
    if (queries_ > 0) transform(weights_.layers[layer]);
  }
  if (queries_ > 0) write_logits(logits);
  for (const ForwardSpan& span : spans) span.cache->advance(span.count);
}

void Decoder::evict_range(SequenceCache* cache, int64_t begin, int64_t end) {
  const std::vector<Cut> cuts = plan_cuts(*cache, begin, end);
  const int64_t distance = cuts.front().distance;
  std::vector<float> cos(shift_angles_.pairs()), sin(shift_angles_.pairs());
  shift_angles_.fill(&distance, 1, cos.data(), sin.data());
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    const Cut& cut = cuts[static_cast<size_t>(layers_.place(layer).group)];
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
    args.shape = page_shape();
    args.rotation = rotation(cos.data(), sin.data());
    kernels_.evict(args, launch_);
  }
  for (int64_t group = 0; group < layers_.group_count(); ++group) {
    cache->cut_group(group, cuts[static_cast<size_t>(group)].begin);
  }
}

void Decoder::compute_angles() {
  rows_ = plan_.rows();
  SINKSTREAM_CHECK(rows_ >= 1 && rows_ <= max_tokens(), "a forward pass has ", rows_, " tokens");
  angles_.fill(plan_.index.data(), rows_, window_cos_, window_sin_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const ForwardPlan::Group& plan = plan_.groups[g];
    angles_.fill(plan.rank.data(), rows_, groups_[g].sink_cos, groups_[g].sink_sin);
  }
  query_cos_ = window_cos_;
  query_sin_ = window_sin_;
  queries_ = rows_;
}

void Decoder::keep_all_rows(const ForwardPlan::Group& plan, GroupRows* rows) {
  rows->rank = plan.rank;
  rows->first = plan.first;
  rows->round_queries.clear();
  rows->spans.clear();
  rows->caches.clear();
  for (const ForwardPlan::Round& round : plan.rounds) {
    rows->round_queries.push_back(
        {.row = round.row, .count = round.rows, .span = round.piece, .spans = round.count});
    for (size_t i = round.piece; i < round.piece + round.count; ++i) {
      const ForwardPlan::Piece& piece = plan.pieces[i];
      rows->spans.push_back({.row = piece.row - round.row,
                             .count = piece.count,
                             .index = piece.index,
                             .sinks = piece.pages->window.sinks,
                             .window_page_count = piece.pages->window_page_count});
      rows->caches.push_back(piece.cache);
    }
  }
}

// Keeps only the rows whose logits are wanted: the last layer's other rows need only their keys and
// values. The kept rows move up.
void Decoder::keep_wanted_rows(const ForwardPlan::Group& plan, GroupRows* rows) {
  const int64_t hidden = spec_.hidden_size, pairs = spec_.rotary_dim() / 2;
  int64_t kept = 0;
  size_t kept_spans = 0;
  for (size_t r = 0; r < plan.rounds.size(); ++r) {
    const ForwardPlan::Round& round = plan.rounds[r];
    Queries& queries = rows->round_queries[r];
    queries.row = kept;
    queries.span = kept_spans;
    for (size_t i = round.piece; i < round.piece + round.count; ++i) {
      const ForwardPlan::Piece& piece = plan.pieces[i];
      if (piece.wanted == 0) continue;
      const int64_t dropped = piece.count - piece.wanted, row = piece.row + dropped;
      AttentionSpan span = rows->spans[i];
      span.row = kept - queries.row;
      span.count = piece.wanted;
      span.index = piece.index + dropped;
      rows->spans[kept_spans] = span;
      rows->caches[kept_spans++] = piece.cache;
      const auto move_rows = [&](const auto* from, auto* to, int64_t width) {
        std::memmove(to + kept * width, from + row * width, piece.wanted * width * sizeof(*to));
      };
      move_rows(hidden_, hidden_, hidden);
      move_rows(normed_, normed_, hidden);
      move_rows(window_cos_, kept_cos_, pairs);
      move_rows(window_sin_, kept_sin_, pairs);
      move_rows(rows->sink_cos, rows->sink_cos, pairs);
      move_rows(rows->sink_sin, rows->sink_sin, pairs);
      move_rows(rows->first.data(), rows->first.data(), 1);
      move_rows(rows->rank.data(), rows->rank.data(), 1);
      kept += piece.wanted;
    }
    queries.count = kept - queries.row;
    queries.spans = kept_spans - queries.span;
  }
  queries_ = kept;
  query_cos_ = kept_cos_;
  query_sin_ = kept_sin_;
}

void Decoder::attend(const LayerWeights& layer, int64_t index) {
  const int64_t q = spec_.query_size(), kv = spec_.kv_size();
  const auto group = static_cast<size_t>(layers_.place(index).group);
  const ForwardPlan::Group& plan = plan_.groups[group];
  GroupRows& rows = groups_[group];
  normalize(hidden_, layer.attention_norm, normed_, rows_, spec_.hidden_size);
  const LinearPart parts[] = {
      {.weights = layer.k, .bias = layer.k_bias, .out = key_, .out_stride = kv},
      {.weights = layer.v, .bias = layer.v_bias, .out = value_, .out_stride = kv},
      {.weights = layer.q, .bias = layer.q_bias, .out = query_, .out_stride = q}};
  const std::span<const LinearPart> all = parts;
  if (index + 1 == spec_.layers && plan_.wanted < rows_) {
    multiply(normed_, rows_, all.first(2));
    keep_wanted_rows(plan, &rows);
    if (queries_ > 0) multiply(normed_, queries_, all.last(1));
  } else {
    multiply(normed_, rows_, all);
  }
  if (spec_.qk_norm) {
    normalize(query_, layer.q_norm, query_, queries_ * spec_.heads, spec_.head_dim);
    normalize(key_, layer.k_norm, key_, rows_ * spec_.kv_heads, spec_.head_dim);
  }
  rotate_query(rotation(query_cos_, query_sin_), query_window_);
  rotate_query(rotation(rows.sink_cos, rows.sink_sin), query_sink_);
  for (size_t r = 0; r < plan.rounds.size(); ++r) {
    append(plan, plan.rounds[r], index);
    if (rows.round_queries[r].count > 0) attend(&rows, rows.round_queries[r], index);
  }
  const LinearPart out[] = {{.weights = layer.o,
                             .bias = layer.o_bias,
                             .out = hidden_,
                             .out_stride = spec_.hidden_size,
                             .accumulate = true}};
  if (queries_ > 0) multiply(attended_, queries_, out);
}

void Decoder::append(const ForwardPlan::Group& plan, const ForwardPlan::Round& round,
                     int64_t layer) {
  const int64_t kv = spec_.kv_size(), pairs = spec_.rotary_dim() / 2;
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
  args.shape = page_shape();
  args.rotation = rotation(window_cos_ + round.row * pairs, window_sin_ + round.row * pairs);
  kernels_.append(args, launch_);
}

void Decoder::attend(GroupRows* rows, const Queries& queries, int64_t layer) {
  const int64_t q = spec_.query_size();
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
  args.heads = spec_.heads;
  args.shape = page_shape();
  args.sink_type = options_.cache_type;
  args.scale = spec_.attention_scale();
  args.scratch = attention_scratch_.data();
  args.scratch_pages = options_.pages;
  kernels_.attention(args, launch_);
}

void Decoder::transform(const LayerWeights& layer) {
  const int64_t inner = spec_.intermediate_size;
  normalize(hidden_, layer.mlp_norm, normed_, queries_, spec_.hidden_size);
  const LinearPart parts[] = {
      {.weights = layer.gate, .bias = layer.gate_bias, .out = gate_, .out_stride = inner},
      {.weights = layer.up, .bias = layer.up_bias, .out = up_, .out_stride = inner}};
  multiply(normed_, queries_, parts);
  kernels_.activation(
      {.gate = gate_, .up = up_, .out = gate_, .stride = inner, .rows = queries_, .dim = inner},
      launch_);
  const LinearPart out[] = {{.weights = layer.down,
                             .bias = layer.down_bias,
                             .out = hidden_,
                             .out_stride = spec_.hidden_size,
                             .accumulate = true}};
  multiply(gate_, queries_, out);
}

void Decoder::write_logits(float* logits) {
  normalize(hidden_, weights_.final_norm, normed_, queries_, spec_.hidden_size);
  const LinearPart part[] = {
      {.weights = weights_.output, .out = logits, .out_stride = spec_.vocab_size}};
  multiply(normed_, queries_, part);
}

void Decoder::normalize(const float* input, const float* weight, float* out, int64_t rows,
                        int64_t dim) {
  kernels_.norm({.input = input,
                 .input_stride = dim,
                 .weight = weight,
                 .out = out,
                 .out_stride = dim,
                 .rows = rows,
                 .dim = dim,
                 .eps = spec_.norm_eps},
                launch_);
}

Rotation Decoder::rotation(const float* cos, const float* sin) const {
  return {.cos = cos, .sin = sin, .rotary_dim = spec_.rotary_dim(), .pairing = spec_.pairing};
}

void Decoder::rotate_query(const Rotation& rotation, float* out) {
  kernels_.rope({.input = query_,
                 .input_stride = spec_.query_size(),
                 .out = out,
                 .rows = queries_,
                 .heads = spec_.heads,
                 .head_dim = spec_.head_dim,
                 .rotation = rotation},
                launch_);
}

// Adjacent parts whose columns have the same order are one call.
void Decoder::multiply(const float* input, int64_t tokens, std::span<const LinearPart> parts) {
  while (!parts.empty()) {
    const int32_t* const order = parts[0].weights.order;
    const auto end = std::ranges::find_if(
        parts, [order](const LinearPart& part) { return part.weights.order != order; });
    const auto count = static_cast<size_t>(end - parts.begin());
    LinearArgs args;
    args.cols = parts[0].weights.cols;
    args.input = in_order(input, tokens, args.cols, order);
    args.input_stride = args.cols;
    args.tokens = tokens;
    args.input_type = options_.input_type;
    args.parts = parts.data();
    args.part_count = static_cast<int64_t>(count);
    args.scratch = linear_scratch_;
    kernels_.linear(args, launch_);
    parts = parts.subspan(count);
  }
}

const float* Decoder::in_order(const float* input, int64_t tokens, int64_t cols,
                               const int32_t* order) {
  if (order == nullptr) return input;
  launch_.pool->run(tokens, [&](int64_t token, int) {
    const float* const from = input + token * cols;
    float* const to = ordered_ + token * cols;
    for (int64_t i = 0; i < cols; ++i) to[i] = from[order[i]];
  });
  return ordered_;
}

}  // namespace sinkstream
