#include "model/cuda_decoder.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "common/carver.h"
#include "common/check.h"
#include "common/errors.h"
#include "kernels/cuda/card.h"
#include "kernels/cuda/linear_plan.h"
#include "model/cut.h"

namespace sinkstream {

namespace {

constexpr int64_t kAlignment = 256;
// Rows whose logits are computed, and brought to the host, together.
constexpr int64_t kLogitRows = cuda::kMostInputs;
// Rows up to which pages are shared out among blocks of threads: more keep a card busy without.
constexpr int64_t kSplitRows = 16;
constexpr int64_t kMostGroup = 128;    // of AttentionArgs::heads
constexpr int64_t kMostRows = 65'535;  // of a grid's second dimension

int64_t splits_of(const cuda::TiledMatrix& weights) {
  return cuda::linear_splits(weights.rows, weights.cols);
}

cuda::SequencePages pages_of(const SequenceCache& cache, int64_t offset) {
  return {.offset = offset,
          .sinks = static_cast<int32_t>(cache.window().sinks),
          .sink_pages = static_cast<int32_t>(cache.sink_page_count()),
          .window_pages = static_cast<int32_t>(cache.window_page_count())};
}

void check_supported(const DecoderSpec& spec) {
  const std::tuple<const char*, int64_t, int64_t> sizes[] = {
      {"the size of a head", spec.head_dim, 16},
      {"the hidden size", spec.hidden_size, 8},
      {"the feed-forward size", spec.intermediate_size, 8}};
  for (const auto& [name, size, divisor] : sizes) {
    if (size % divisor == 0) continue;
    throw CheckpointError(cat("load: ", name, " must be a multiple of ", divisor,
                              " to run on a card, but is ", size, ". Use `device=\"cpu\"`."));
  }
  if (spec.heads / spec.kv_heads > kMostGroup) {
    throw CheckpointError(cat("load: at most ", kMostGroup,
                              " query heads may share a key head to run on a card, but ",
                              spec.heads / spec.kv_heads, " do. Use `device=\"cpu\"`."));
  }
  if (spec.vocab_size > cuda::kMostVocab) {
    throw CheckpointError(cat("load: the vocabulary must have at most ", cuda::kMostVocab,
                              " tokens to run on a card, but has ", spec.vocab_size,
                              ". Use `device=\"cpu\"`."));
  }
}

}  // namespace

CudaDecoder::CudaDecoder(const DecoderSpec& spec, const DecoderWeights& weights,
                         const cuda::Plugin& plugin, cuda::Stream stream, ThreadPool* threads,
                         const CudaDecoderOptions& options)
    : spec_(spec),
      plugin_(plugin),
      runtime_(plugin.runtime),
      stream_(stream),
      options_(options),
      angles_(spec.inverse_frequencies, spec.attention_factor),
      turns_(spec.inverse_frequencies),
      plan_(options.max_tokens) {
  check_supported(spec);
  if (options.max_tokens > kMostRows) {
    throw InvalidArgument(cat("load: `prefill_chunk` and `max_sequences` must be at most ",
                              kMostRows, " together on a card, but are ", options.max_tokens, "."),
                          "prefill_chunk");
  }
  weights_ = copy_to_card(spec, weights, runtime_, stream, threads);
  const int64_t rows = options.max_tokens, q = spec.query_size();
  int64_t partials = 0;
  for (const CudaLayerWeights& layer : weights_.layers) {
    for (const cuda::TiledMatrix* map : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      partials = std::max(partials, splits_of(*map) * rows * map->rows);
    }
  }
  const int64_t logits = splits_of(weights_.output) * kLogitRows * spec.vocab_size;
  const auto carve = [&](Carver<kAlignment> carver) {
    hidden_ = carver.take<float>(rows * spec.hidden_size);
    normed_ = carver.take<std::byte>(rows * spec.hidden_size * 2);
    query_window_ = carver.take<std::byte>(rows * q * 2);
    query_sink_ = carver.take<std::byte>(rows * q * 2);
    attended_ = carver.take<std::byte>(rows * q * 2);
    activated_ = carver.take<std::byte>(rows * spec.intermediate_size * 2);
    partials_memory_ = carver.take<float>(std::max(partials, logits));
    attention_scratch_ = carver.take<float>(cuda::attention_scratch_floats(
        std::min(rows, kSplitRows), spec.heads, spec.head_dim, options.pages));
    return carver.used();
  };
  scratch_bytes_ = carve(Carver<kAlignment>(nullptr));
  scratch_ = cuda::take_memory(runtime_, scratch_bytes_, "the decoder's scratch");
  carve(Carver<kAlignment>(scratch_.get()));
  runs_.reserve(rows);
  const int64_t spans = std::min(options.max_sequences, rows);
  reserve_step(carve_step(nullptr, rows, spans, spans * spec.layers * options.pages).bytes);
  logits_here_ = cuda::take_pinned(runtime_, logits * int64_t{sizeof(float)}, "logits");
}

void CudaDecoder::give_back() {
  runtime_.finish(stream_);  // whatever became of it
  weights_.memory.reset();
  scratch_.reset();
  step_there_.reset();
}

CudaDecoder::StepBlock CudaDecoder::carve_step(std::byte* base, int64_t rows, int64_t spans,
                                               int64_t page_ids) const {
  const int64_t pairs = spec_.rotary_dim() / 2;
  Carver<kAlignment> carver(base);
  StepBlock block;
  block.ids = carver.take<int32_t>(rows);
  block.tokens = carver.take<cuda::TokenRow>(rows);
  block.index_cos = carver.take<float>(rows * pairs);
  block.index_sin = carver.take<float>(rows * pairs);
  block.rank_cos = carver.take<float>(rows * pairs);
  block.rank_sin = carver.take<float>(rows * pairs);
  block.sequences = carver.take<cuda::SequencePages>(spans);
  block.page_ids = carver.take<int32_t>(page_ids);
  block.bytes = carver.used();
  return block;
}

// Grows for a forward without a window over a text longer than any that was planned for.
void CudaDecoder::reserve_step(int64_t bytes) {
  if (bytes <= step_bytes_) return;
  check(runtime_.finish(stream_), "waiting for a forward");
  step_here_ = cuda::take_pinned(runtime_, bytes, "a forward's rows");
  step_there_ = cuda::take_memory(runtime_, bytes, "a forward's rows");
  step_bytes_ = bytes;
}

void CudaDecoder::forward(std::span<const ForwardSpan> spans, float* logits) {
  plan_.make(spans);
  SINKSTREAM_CHECK(plan_.rows() >= 1 && plan_.rows() <= max_tokens(), "a forward has ",
                   plan_.rows(), " tokens");
  send_rows(spans);
  check(plugin_.ops.embedding(
            {.ids = there_.ids, .rows = plan_.rows(), .table = weights_.embedding, .out = hidden_},
            stream_),
        "embedding");
  has_residual_ = false;
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    attend(weights_.layers[layer], layer);
    if (is_needed(layer)) transform(weights_.layers[layer]);
  }
  if (plan_.wanted > 0) write_logits(logits);
  // The step block is written anew by the next forward.
  check(runtime_.finish(stream_), "a forward");
  for (const ForwardSpan& span : spans) span.cache->advance(span.count);
}

void CudaDecoder::evict_range(SequenceCache* cache, int64_t begin, int64_t end) {
  const auto [first, distance, older] = plan_cut(*cache, begin, end);
  const std::span<const int32_t> ids = cache->page_ids();
  const auto carve = [&, this](std::byte* base) {
    Carver<kAlignment> carver(base);
    CutBlock block;
    block.from = carver.take<cuda::SequenceSlot>(older);
    block.to = carver.take<cuda::SequenceSlot>(older);
    block.cos = carver.take<float>(turns_.pairs());
    block.sin = carver.take<float>(turns_.pairs());
    block.sequence = carver.take<cuda::SequencePages>(1);
    block.page_ids = carver.take<int32_t>(std::ssize(ids));
    block.bytes = carver.used();
    return block;
  };
  reserve_step(carve(nullptr).bytes);
  const CutBlock here = carve(step_here_.get()), there = carve(step_there_.get());
  const auto place = [&](int64_t index) {
    return cuda::SequenceSlot{static_cast<int32_t>(cache->place(index)),
                              static_cast<int32_t>(cache->slot(0, index).row)};
  };
  for (int64_t i = 0; i < older; ++i) {  // the youngest first, so that none is overwritten
    here.from[i] = place(first + older - 1 - i);
    here.to[i] = place(first + older - 1 - i + distance);
  }
  turns_.fill(&distance, 1, here.cos, here.sin);
  *here.sequence = pages_of(*cache, 0);
  std::copy(ids.begin(), ids.end(), here.page_ids);
  check(runtime_.copy(step_there_.get(), step_here_.get(), here.bytes, stream_), "sending a cut");
  cuda::EvictArgs args;
  args.pages = {cache->memory().data(), there.page_ids, there.sequence, 0, page_shape()};
  args.layers = static_cast<int32_t>(spec_.layers);
  args.from = there.from;
  args.to = there.to;
  args.rows = static_cast<int32_t>(older);
  args.rotation = {there.cos, there.sin, spec_.rotary_dim(), spec_.pairing};
  if (older > 0) check(plugin_.ops.evict(args, stream_), "evict");
  check(runtime_.finish(stream_), "a cut");
  cache->cut(first + distance);
}

// Whether anybody reads what a layer leaves beside its keys and values.
bool CudaDecoder::is_needed(int64_t layer) const {
  return layer + 1 < spec_.layers || plan_.wanted > 0;
}

// Says on the card what each row is: its token, its places, its angles, and where its pages are.
void CudaDecoder::send_rows(std::span<const ForwardSpan> spans) {
  const int64_t rows = plan_.rows();
  int64_t page_ids = 0;
  for (const ForwardSpan& span : spans) page_ids += std::ssize(span.cache->page_ids());
  reserve_step(carve_step(nullptr, rows, std::ssize(spans), page_ids).bytes);
  here_ = carve_step(step_here_.get(), rows, std::ssize(spans), page_ids);
  there_ = carve_step(step_there_.get(), rows, std::ssize(spans), page_ids);

  std::copy(plan_.ids.begin(), plan_.ids.end(), here_.ids);
  angles_.fill(plan_.index.data(), rows, here_.index_cos, here_.index_sin);
  angles_.fill(plan_.rank.data(), rows, here_.rank_cos, here_.rank_sin);
  pool_ = spans[0].cache->memory().data();
  int64_t row = 0, page_id = 0;
  for (int64_t i = 0; i < std::ssize(spans); ++i) {
    const SequenceCache& cache = *spans[i].cache;
    SINKSTREAM_CHECK(cache.memory().data() == pool_, "a forward has pages of two pools");
    here_.sequences[i] = pages_of(cache, page_id);
    for (int64_t t = 0; t < spans[i].count; ++t, ++row) {
      here_.tokens[row] = {plan_.index[row], plan_.first[row], plan_.rank[row],
                           static_cast<int32_t>(i)};
    }
    const std::span<const int32_t> ids = cache.page_ids();
    std::copy(ids.begin(), ids.end(), here_.page_ids + page_id);
    page_id += std::ssize(ids);
  }
  check(runtime_.copy(step_there_.get(), step_here_.get(), here_.bytes, stream_),
        "sending a forward's rows");
}

void CudaDecoder::attend(const CudaLayerWeights& layer, int64_t index) {
  const int64_t rows = plan_.rows();
  normalize(layer.attention_norm, 0, rows);
  multiply(layer.qkv, layer.qkv_bias, normed_, spec_.hidden_size, rows);
  for (const ForwardPlan::Round& round : plan_.rounds) {
    append(round, layer, index);
    if (is_needed(index)) attend(round, index);
  }
  if (!is_needed(index)) return;
  multiply(layer.o, layer.o_bias, attended_, spec_.query_size(), rows);
  has_residual_ = true;
}

cuda::Pages CudaDecoder::pages(int64_t layer) const {
  return {pool_, there_.page_ids, there_.sequences, static_cast<int32_t>(layer), page_shape()};
}

void CudaDecoder::append(const ForwardPlan::Round& round, const CudaLayerWeights& layer,
                         int64_t index) {
  const int64_t pairs = spec_.rotary_dim() / 2, q = spec_.query_size();
  cuda::RopeAppendArgs args;
  args.qkv = partials_from(round.row);
  args.query_norm = layer.q_norm;
  args.key_norm = layer.k_norm;
  args.norm_eps = spec_.norm_eps;
  args.rows = round.rows;
  args.heads = static_cast<int32_t>(spec_.heads);
  args.tokens = there_.tokens + round.row;
  args.by_index = {there_.index_cos + round.row * pairs, there_.index_sin + round.row * pairs,
                   spec_.rotary_dim(), spec_.pairing};
  args.by_rank = {there_.rank_cos + round.row * pairs, there_.rank_sin + round.row * pairs,
                  spec_.rotary_dim(), spec_.pairing};
  args.pages = pages(index);
  args.query_window = query_window_ + round.row * q * 2;
  args.query_sink = query_sink_ + round.row * q * 2;
  check(plugin_.ops.rope_append(args, stream_), "rope_append");
}

// Single rows that follow each other share a launch, whatever their sequences; longer pieces have
// one each.
void CudaDecoder::attend(const ForwardPlan::Round& round, int64_t layer) {
  const size_t end = round.piece + round.count;
  for (size_t i = round.piece; i < end;) {
    const ForwardPlan::Piece& piece = plan_.pieces[i++];
    int64_t rows = piece.count;
    if (piece.count == 1) {
      while (i < end && plan_.pieces[i].count == 1) ++rows, ++i;
    }
    attend(piece.row, rows, piece.count, layer);
  }
}

void CudaDecoder::attend(int64_t row, int64_t rows, int64_t span_rows, int64_t layer) {
  const int64_t q = spec_.query_size();
  int64_t most_pages = 0;
  for (int64_t i = row; i < row + rows; ++i) {
    const cuda::SequencePages& sequence = here_.sequences[here_.tokens[i].sequence];
    most_pages = std::max<int64_t>(most_pages, sequence.sink_pages + sequence.window_pages);
  }
  cuda::AttentionArgs args;
  args.query_window = query_window_ + row * q * 2;
  args.query_sink = query_sink_ + row * q * 2;
  args.out = attended_ + row * q * 2;
  args.rows = there_.tokens + row;
  args.row_count = static_cast<int32_t>(rows);
  args.heads = static_cast<int32_t>(spec_.heads);
  args.pages = pages(layer);
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec_.head_dim)));
  args.span_rows = static_cast<int32_t>(span_rows);
  args.page_slots = static_cast<int32_t>(options_.pages);
  args.scratch = attention_scratch_;
  const bool is_split = span_rows == 1 && rows <= kSplitRows && most_pages <= options_.pages;
  const auto attention = is_split ? plugin_.ops.attention_decode : plugin_.ops.attention_prefill;
  check(attention(args, stream_), "attention");
}

void CudaDecoder::transform(const CudaLayerWeights& layer) {
  const int64_t rows = plan_.rows(), inner = spec_.intermediate_size;
  normalize(layer.mlp_norm, 0, rows);
  multiply(layer.gate_up, layer.gate_up_bias, normed_, spec_.hidden_size, rows);
  check(plugin_.ops.swiglu({.gate_up = partials_from(0),
                            .rows = rows,
                            .dim = inner,
                            .out = activated_,
                            .out_stride = inner},
                           stream_),
        "swiglu");
  multiply(layer.down, layer.down_bias, activated_, inner, rows);
  has_residual_ = true;
}

// Rows whose logits are wanted and that follow each other are normalised together, all of them
// before the first map to logits: it takes the place of what the last layer left.
void CudaDecoder::write_logits(float* logits) {
  runs_.clear();
  for (const ForwardPlan::Piece& piece : plan_.pieces) {
    const int64_t row = piece.row + piece.count - piece.wanted;
    if (piece.wanted == 0) continue;
    if (!runs_.empty() && runs_.back().row + runs_.back().rows == row) {
      runs_.back().rows += piece.wanted;
    } else {
      runs_.push_back({row, piece.wanted});
    }
  }
  for (const Run& run : runs_) normalize(weights_.final_norm, run.row, run.rows);
  for (const Run& run : runs_) {
    for (int64_t row = run.row; row < run.row + run.rows; row += kLogitRows) {
      const int64_t rows = std::min(kLogitRows, run.row + run.rows - row);
      write_logits(row, rows, logits);
      logits += rows * spec_.vocab_size;
    }
  }
}

void CudaDecoder::write_logits(int64_t row, int64_t rows, float* logits) {
  multiply(weights_.output, nullptr, normed_ + row * spec_.hidden_size * 2, spec_.hidden_size,
           rows);
  const int64_t count = rows * spec_.vocab_size;
  check(runtime_.copy(logits_here_.get(), partials_.data,
                      partials_.splits * count * int64_t{sizeof(float)}, stream_),
        "bringing logits");
  check(runtime_.finish(stream_), "a forward");
  const auto* const split = reinterpret_cast<const float*>(logits_here_.get());
  for (int64_t i = 0; i < count; ++i) {
    float sum = split[i];
    for (int32_t s = 1; s < partials_.splits; ++s) sum += split[s * count + i];
    logits[i] = sum;
  }
}

void CudaDecoder::normalize(const float* weight, int64_t row, int64_t rows) {
  const int64_t hidden = spec_.hidden_size;
  cuda::RmsNormArgs args;
  args.hidden = hidden_ + row * hidden;
  if (has_residual_) args.residual = partials_from(row);
  args.weight = weight;
  args.out = normed_ + row * hidden * 2;
  args.rows = rows;
  args.dim = hidden;
  args.eps = spec_.norm_eps;
  check(plugin_.ops.rms_norm(args, stream_), "rms_norm");
}

void CudaDecoder::multiply(const cuda::TiledMatrix& weights, const float* bias, const void* input,
                           int64_t input_stride, int64_t rows) {
  cuda::LinearArgs args;
  args.weights = weights;
  args.bias = bias;
  args.input = input;
  args.input_stride = input_stride;
  args.rows = rows;
  args.out = partials_memory_;
  args.out_rows = rows;
  args.out_stride = weights.rows;
  check(plugin_.ops.linear(args, stream_), "linear");
  partials_ = {partials_memory_, static_cast<int32_t>(splits_of(weights)), rows, weights.rows};
}

cuda::Partials CudaDecoder::partials_from(int64_t row) const {
  cuda::Partials partials = partials_;
  partials.data += row * partials.stride;
  return partials;
}

void CudaDecoder::check(cuda::Status status, const char* what) const {
  cuda::check(runtime_, status, what);
}

}  // namespace sinkstream
