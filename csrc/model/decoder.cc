#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/check.h"
#include "common/errors.h"

namespace sinkstream {

namespace {

// Hands out pieces of one buffer; run once to count and once to place.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    std::byte* at = base_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace

Decoder::Decoder(const DecoderSpec& spec, DecoderWeights weights, const Kernels& kernels,
                 ThreadPool* pool, const DecoderOptions& options)
    : spec_(spec),
      weights_(std::move(weights)),
      kernels_(kernels),
      launch_{pool},
      options_(options),
      angles_(spec.inverse_frequencies, spec.attention_factor),
      turns_(spec.inverse_frequencies) {
  const int64_t rows = options.max_tokens;
  const int64_t q = spec.query_size(), kv = spec.kv_size(), pairs = spec.rotary_dim() / 2;
  const int64_t widest = std::max({spec.hidden_size, spec.intermediate_size, q});
  const auto carve = [&](Carver carver) {
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
    sink_cos_ = carver.take<float>(rows * pairs);
    sink_sin_ = carver.take<float>(rows * pairs);
    linear_scratch_ = carver.take<std::byte>(linear_scratch_bytes(rows, widest));
    return carver.used();
  };
  arena_ = Buffer(carve(Carver(nullptr)), "the decoder's scratch");
  carve(Carver(arena_.data()));
  attention_scratch_ =
      Buffer(attention_scratch_bytes(spec.heads, spec.head_dim, options.pages, pool->threads()),
             "the attention's scratch");
  ids_.reserve(rows);
  index_.reserve(rows);
  rank_.reserve(rows);
  first_.reserve(rows);
  slots_.resize(rows);
  rounds_.reserve(rows);
  attention_spans_.reserve(rows);
  span_caches_.reserve(rows);
}

void Decoder::forward(std::span<const ForwardSpan> spans, float* logits) {
  place(spans);
  plan_rounds(spans);
  kernels_.embedding({ids_.data(), rows_, weights_.embedding, hidden_}, launch_);
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    attend(weights_.layers[layer], layer);
    transform(weights_.layers[layer]);
  }
  write_logits(spans, logits);
  for (const ForwardSpan& span : spans) span.cache->advance(span.count);
}

void Decoder::evict_range(SequenceCache* cache, int64_t begin, int64_t end) {
  const Window& window = cache->window();
  const int64_t next = cache->length(), cached = window.rank(next);
  if (begin < window.sinks || begin >= end || end > cached) {
    throw InvalidArgument(cat("evict_range: `start` and `end` must satisfy ", window.sinks,
                              " <= start < end <= ", cached,
                              ", from behind the sinks to the end of what is cached, but are ",
                              begin, " and ", end, "."),
                          begin < window.sinks || begin >= cached ? "start" : "end");
  }
  const int64_t first = window.first(next), distance = end - begin;
  const int64_t older = begin - window.sinks;  // tokens before the cut
  std::vector<float> cos(turns_.pairs()), sin(turns_.pairs());
  turns_.fill(&distance, 1, cos.data(), sin.data());
  std::vector<Slot> from(older), to(older);
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    for (int64_t i = 0; i < older; ++i) {  // the youngest first, so that none is overwritten
      from[i] = cache->slot(layer, first + older - 1 - i);
      to[i] = cache->slot(layer, first + older - 1 - i + distance);
    }
    EvictArgs args;
    args.from = from.data();
    args.to = to.data();
    args.rows = older;
    args.shape = page_shape();
    args.rotation = {cos.data(), sin.data(), spec_.rotary_dim(), spec_.pairing};
    kernels_.evict(args, launch_);
  }
  cache->cut(first + distance);
}

// Lists what each row is: its token, index, rank, oldest visible window token, and angles.
void Decoder::place(std::span<const ForwardSpan> spans) {
  ids_.clear();
  index_.clear();
  rank_.clear();
  first_.clear();
  for (const ForwardSpan& span : spans) {
    const SequenceCache& cache = *span.cache;
    SINKSTREAM_CHECK(span.count >= 1, "a span has ", span.count, " tokens");
    for (int64_t i = 0; i < span.count; ++i) {
      const int64_t t = cache.length() + i;
      ids_.push_back(span.tokens[i]);
      index_.push_back(t);
      rank_.push_back(cache.window().rank(t));
      first_.push_back(cache.window().first(t));
    }
  }
  rows_ = static_cast<int64_t>(ids_.size());
  SINKSTREAM_CHECK(rows_ >= 1 && rows_ <= max_tokens(), "a forward has ", rows_, " tokens");
  angles_.fill(index_.data(), rows_, window_cos_, window_sin_);
  angles_.fill(rank_.data(), rows_, sink_cos_, sink_sin_);
}

// Cuts the spans into rounds. Spans of one piece that follow each other share a round, so a step
// of many decoding sequences is one call; a longer span has a round for each piece.
void Decoder::plan_rounds(std::span<const ForwardSpan> spans) {
  rounds_.clear();
  attention_spans_.clear();
  span_caches_.clear();
  int64_t row = 0;
  bool joinable = false;
  for (const ForwardSpan& span : spans) {
    const SequenceCache& cache = *span.cache;
    const int64_t end = cache.length() + span.count;
    for (int64_t t = cache.length(); t < end;) {
      const int64_t count = cache.window().piece(t, end - t);
      const bool is_whole = count == span.count;
      if (!(joinable && is_whole)) rounds_.push_back({row, 0, attention_spans_.size(), 0});
      joinable = is_whole;
      Round& round = rounds_.back();
      AttentionSpan& piece = attention_spans_.emplace_back();
      piece.row = row - round.row;
      piece.count = count;
      piece.index = t;
      piece.sinks = cache.window().sinks;
      piece.window_page_count = cache.window_page_count();
      span_caches_.push_back(&cache);
      round.rows += count;
      round.spans += 1;
      row += count;
      t += count;
    }
  }
}

void Decoder::attend(const LayerWeights& layer, int64_t index) {
  const int64_t q = spec_.query_size(), kv = spec_.kv_size();
  normalize(hidden_, layer.attention_norm, normed_, rows_, spec_.hidden_size);
  const LinearPart parts[] = {{layer.q, layer.q_bias, query_, q},
                              {layer.k, layer.k_bias, key_, kv},
                              {layer.v, layer.v_bias, value_, kv}};
  multiply(normed_, rows_, parts);
  if (spec_.qk_norm) {
    normalize(query_, layer.q_norm, query_, rows_ * spec_.heads, spec_.head_dim);
    normalize(key_, layer.k_norm, key_, rows_ * spec_.kv_heads, spec_.head_dim);
  }
  const Rotation by_index{window_cos_, window_sin_, spec_.rotary_dim(), spec_.pairing};
  const Rotation by_rank{sink_cos_, sink_sin_, spec_.rotary_dim(), spec_.pairing};
  kernels_.rope({query_, q, query_window_, rows_, spec_.heads, spec_.head_dim, by_index}, launch_);
  kernels_.rope({query_, q, query_sink_, rows_, spec_.heads, spec_.head_dim, by_rank}, launch_);
  for (const Round& round : rounds_) run_round(round, index);
  const LinearPart out[] = {{layer.o, layer.o_bias, hidden_, spec_.hidden_size, true}};
  multiply(attended_, rows_, out);
}

void Decoder::run_round(const Round& round, int64_t layer) {
  const int64_t q = spec_.query_size(), kv = spec_.kv_size(), pairs = spec_.rotary_dim() / 2;
  Slot* slot = slots_.data();
  for (size_t i = round.span; i < round.span + round.spans; ++i) {
    AttentionSpan& span = attention_spans_[i];
    span.sink_pages = span_caches_[i]->sink_pages(layer);
    span.window_pages = span_caches_[i]->window_pages(layer);
    for (int64_t t = span.index; t < span.index + span.count; ++t) {
      *slot++ = span_caches_[i]->slot(layer, t);
    }
  }
  AppendArgs append;
  append.keys = key_ + round.row * kv;
  append.values = value_ + round.row * kv;
  append.key_stride = append.value_stride = kv;
  append.slots = slots_.data();
  append.rows = round.rows;
  append.shape = page_shape();
  append.rotation = {window_cos_ + round.row * pairs, window_sin_ + round.row * pairs,
                     spec_.rotary_dim(), spec_.pairing};
  kernels_.append(append, launch_);

  AttentionArgs attention;
  attention.query_window = query_window_ + round.row * q;
  attention.query_sink = query_sink_ + round.row * q;
  attention.out = attended_ + round.row * q;
  attention.first = first_.data() + round.row;
  attention.rank = rank_.data() + round.row;
  attention.spans = attention_spans_.data() + round.span;
  attention.span_count = static_cast<int64_t>(round.spans);
  attention.rows = round.rows;
  attention.heads = spec_.heads;
  attention.shape = page_shape();
  attention.sink_type = options_.cache_type;
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec_.head_dim)));
  attention.scratch = attention_scratch_.data();
  attention.scratch_pages = options_.pages;
  kernels_.attention(attention, launch_);
}

void Decoder::transform(const LayerWeights& layer) {
  const int64_t inner = spec_.intermediate_size;
  normalize(hidden_, layer.mlp_norm, normed_, rows_, spec_.hidden_size);
  const LinearPart parts[] = {{layer.gate, layer.gate_bias, gate_, inner},
                              {layer.up, layer.up_bias, up_, inner}};
  multiply(normed_, rows_, parts);
  kernels_.swiglu({gate_, up_, gate_, inner, rows_, inner}, launch_);
  const LinearPart out[] = {{layer.down, layer.down_bias, hidden_, spec_.hidden_size, true}};
  multiply(gate_, rows_, out);
}

void Decoder::write_logits(std::span<const ForwardSpan> spans, float* logits) {
  const int64_t hidden = spec_.hidden_size;
  int64_t row = 0, wanted = 0;
  for (const ForwardSpan& span : spans) {
    const int64_t count = span.logits == LogitsOf::kAll    ? span.count
                          : span.logits == LogitsOf::kLast ? 1
                                                           : 0;
    normalize(hidden_ + (row + span.count - count) * hidden, weights_.final_norm,
              normed_ + wanted * hidden, count, hidden);
    row += span.count;
    wanted += count;
  }
  if (wanted == 0) return;
  const LinearPart part[] = {{weights_.output, nullptr, logits, spec_.vocab_size}};
  multiply(normed_, wanted, part);
}

void Decoder::normalize(const float* input, const float* weight, float* out, int64_t rows,
                        int64_t dim) {
  kernels_.rms_norm({input, dim, weight, out, dim, rows, dim, spec_.norm_eps}, launch_);
}

void Decoder::multiply(const float* input, int64_t tokens, std::span<const LinearPart> parts) {
  LinearArgs args;
  args.cols = parts[0].weights.cols;
  args.input = input;
  args.input_stride = args.cols;
  args.tokens = tokens;
  args.input_type = options_.input_type;
  args.parts = parts.data();
  args.part_count = static_cast<int64_t>(parts.size());
  args.scratch = linear_scratch_;
  kernels_.linear(args, launch_);
}

}  // namespace sinkstream
