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

// How many of a span's last rows want logits.
int64_t wanted_of(const ForwardSpan& span) {
  switch (span.logits) {
    case LogitsOf::kNone: return 0;
    case LogitsOf::kLast: return 1;
    case LogitsOf::kAll: return span.count;
  }
  return 0;
}

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
    kept_cos_ = carver.take<float>(rows * pairs);
    kept_sin_ = carver.take<float>(rows * pairs);
    linear_scratch_ = carver.take<std::byte>(linear_scratch_bytes(rows, widest));
    return carver.used();
  };
  arena_ = Buffer(carve(Carver(nullptr)), "the decoder's scratch", pool);
  carve(Carver(arena_.data()));
  attention_scratch_ =
      Buffer(attention_scratch_bytes(spec.heads, spec.head_dim, options.pages, pool->threads()),
             "the attention's scratch", pool);
  ids_.reserve(rows);
  index_.reserve(rows);
  rank_.reserve(rows);
  first_.reserve(rows);
  slots_.resize(rows);
  rounds_.reserve(rows);
  attention_spans_.reserve(rows);
  pieces_.reserve(rows);
  span_caches_.reserve(rows);
}

void Decoder::forward(std::span<const ForwardSpan> spans, float* logits) {
  place(spans);
  plan_rounds(spans);
  kernels_.embedding({ids_.data(), rows_, weights_.embedding, hidden_}, launch_);
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    attend(weights_.layers[layer], layer);
    if (queries_ > 0) transform(weights_.layers[layer]);
  }
  if (queries_ > 0) write_logits(logits);
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
  queries_ = rows_;
  query_cos_ = window_cos_;
  query_sin_ = window_sin_;
}

// Cuts the spans into rounds. Spans of one piece that follow each other share a round, so a step
// of many decoding sequences is one call; a longer span has a round for each piece.
void Decoder::plan_rounds(std::span<const ForwardSpan> spans) {
  rounds_.clear();
  pieces_.clear();
  attention_spans_.clear();
  span_caches_.clear();
  wanted_ = 0;
  int64_t row = 0;
  bool joinable = false;
  for (const ForwardSpan& span : spans) {
    const SequenceCache& cache = *span.cache;
    const int64_t end = cache.length() + span.count;
    const int64_t wanted = wanted_of(span);
    for (int64_t t = cache.length(); t < end;) {
      const int64_t count = cache.window().piece(t, end - t);
      const bool is_whole = count == span.count;
      if (!(joinable && is_whole)) {
        const size_t place = pieces_.size();
        rounds_.push_back({.row = row, .piece = place, .query_row = row, .span = place});
      }
      joinable = is_whole;
      Round& round = rounds_.back();
      pieces_.push_back(
          {&cache, t, count, std::clamp<int64_t>(wanted - (end - t - count), 0, count)});
      attention_spans_.push_back({.row = row - round.row,
                                  .count = count,
                                  .index = t,
                                  .sinks = cache.window().sinks,
                                  .window_page_count = cache.window_page_count()});
      span_caches_.push_back(&cache);
      round.rows += count;
      round.queries += count;
      round.pieces += 1;
      round.spans += 1;
      row += count;
      t += count;
    }
    wanted_ += wanted;
  }
}

// Leaves only the rows whose logits are wanted to attend and to go on: nothing reads what the last
// layer makes of the others, beyond their keys and values. What is kept moves up.
void Decoder::keep_wanted() {
  const int64_t hidden = spec_.hidden_size, pairs = spec_.rotary_dim() / 2;
  int64_t row = 0, kept = 0;
  size_t kept_spans = 0;
  for (Round& round : rounds_) {
    round.query_row = kept;
    round.span = kept_spans;
    for (size_t i = round.piece; i < round.piece + round.pieces; ++i) {
      const Piece& piece = pieces_[i];
      row += piece.count - piece.wanted;
      if (piece.wanted == 0) continue;
      AttentionSpan span = attention_spans_[i];
      span.row = kept - round.query_row;
      span.count = piece.wanted;
      span.index = piece.index + piece.count - piece.wanted;
      attention_spans_[kept_spans] = span;
      span_caches_[kept_spans++] = piece.cache;
      const auto move_rows = [&](const auto* from, auto* to, int64_t width) {
        std::memmove(to + kept * width, from + row * width, piece.wanted * width * sizeof(*to));
      };
      move_rows(hidden_, hidden_, hidden);
      move_rows(normed_, normed_, hidden);
      move_rows(window_cos_, kept_cos_, pairs);
      move_rows(window_sin_, kept_sin_, pairs);
      move_rows(sink_cos_, sink_cos_, pairs);
      move_rows(sink_sin_, sink_sin_, pairs);
      move_rows(first_.data(), first_.data(), 1);
      move_rows(rank_.data(), rank_.data(), 1);
      row += piece.wanted;
      kept += piece.wanted;
    }
    round.queries = kept - round.query_row;
    round.spans = kept_spans - round.span;
  }
  queries_ = kept;
  query_cos_ = kept_cos_;
  query_sin_ = kept_sin_;
}

void Decoder::attend(const LayerWeights& layer, int64_t index) {
  const int64_t q = spec_.query_size(), kv = spec_.kv_size();
  normalize(hidden_, layer.attention_norm, normed_, rows_, spec_.hidden_size);
  const LinearPart parts[] = {{layer.k, layer.k_bias, key_, kv},
                              {layer.v, layer.v_bias, value_, kv},
                              {layer.q, layer.q_bias, query_, q}};
  const std::span<const LinearPart> all = parts;
  if (index + 1 == spec_.layers && wanted_ < rows_) {
    multiply(normed_, rows_, all.first(2));
    keep_wanted();
    if (queries_ > 0) multiply(normed_, queries_, all.last(1));
  } else {
    multiply(normed_, rows_, all);
  }
  if (spec_.qk_norm) {
    normalize(query_, layer.q_norm, query_, queries_ * spec_.heads, spec_.head_dim);
    normalize(key_, layer.k_norm, key_, rows_ * spec_.kv_heads, spec_.head_dim);
  }
  const Rotation by_index{query_cos_, query_sin_, spec_.rotary_dim(), spec_.pairing};
  const Rotation by_rank{sink_cos_, sink_sin_, spec_.rotary_dim(), spec_.pairing};
  const int64_t heads = spec_.heads, head_dim = spec_.head_dim;
  kernels_.rope({query_, q, query_window_, queries_, heads, head_dim, by_index}, launch_);
  kernels_.rope({query_, q, query_sink_, queries_, heads, head_dim, by_rank}, launch_);
  for (const Round& round : rounds_) {
    append(round, index);
    if (round.queries > 0) attend(round, index);
  }
  const LinearPart out[] = {{layer.o, layer.o_bias, hidden_, spec_.hidden_size, true}};
  if (queries_ > 0) multiply(attended_, queries_, out);
}

void Decoder::append(const Round& round, int64_t layer) {
  const int64_t kv = spec_.kv_size(), pairs = spec_.rotary_dim() / 2;
  Slot* slot = slots_.data();
  for (size_t i = round.piece; i < round.piece + round.pieces; ++i) {
    const Piece& piece = pieces_[i];
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
  args.rotation = {window_cos_ + round.row * pairs, window_sin_ + round.row * pairs,
                   spec_.rotary_dim(), spec_.pairing};
  kernels_.append(args, launch_);
}

void Decoder::attend(const Round& round, int64_t layer) {
  const int64_t q = spec_.query_size();
  for (size_t i = round.span; i < round.span + round.spans; ++i) {
    attention_spans_[i].sink_pages = span_caches_[i]->sink_pages(layer);
    attention_spans_[i].window_pages = span_caches_[i]->window_pages(layer);
  }
  AttentionArgs args;
  args.query_window = query_window_ + round.query_row * q;
  args.query_sink = query_sink_ + round.query_row * q;
  args.out = attended_ + round.query_row * q;
  args.first = first_.data() + round.query_row;
  args.rank = rank_.data() + round.query_row;
  args.spans = attention_spans_.data() + round.span;
  args.span_count = static_cast<int64_t>(round.spans);
  args.rows = round.queries;
  args.heads = spec_.heads;
  args.shape = page_shape();
  args.sink_type = options_.cache_type;
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec_.head_dim)));
  args.scratch = attention_scratch_.data();
  args.scratch_pages = options_.pages;
  kernels_.attention(args, launch_);
}

void Decoder::transform(const LayerWeights& layer) {
  const int64_t inner = spec_.intermediate_size;
  normalize(hidden_, layer.mlp_norm, normed_, queries_, spec_.hidden_size);
  const LinearPart parts[] = {{layer.gate, layer.gate_bias, gate_, inner},
                              {layer.up, layer.up_bias, up_, inner}};
  multiply(normed_, queries_, parts);
  kernels_.swiglu({gate_, up_, gate_, inner, queries_, inner}, launch_);
  const LinearPart out[] = {{layer.down, layer.down_bias, hidden_, spec_.hidden_size, true}};
  multiply(gate_, queries_, out);
}

void Decoder::write_logits(float* logits) {
  normalize(hidden_, weights_.final_norm, normed_, queries_, spec_.hidden_size);
  const LinearPart part[] = {{weights_.output, nullptr, logits, spec_.vocab_size}};
  multiply(normed_, queries_, part);
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
