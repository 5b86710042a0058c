#include "model/cuda/decoder.h"

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "common/errors.h"
#include "kernels/cuda/gpu.h"

namespace sinkstream {

namespace {

constexpr int64_t kMostGroup = 128;     // of AttentionArgs::heads
constexpr int64_t kMostRows = 65'535;   // of a grid's second dimension
constexpr int64_t kMostPages = 65'535;  // of its third
// Entries of bias for each row of a graph; a step with more is launched without one.
constexpr int64_t kGraphBias = 32;

const DecoderSpec& checked(const DecoderSpec& spec, const CudaDecoderOptions& options) {
  const std::tuple<const char*, int64_t, int64_t> sizes[] = {
      {"the size of a head", spec.head_dim, 16},
      {"the hidden size", spec.hidden_size, 8},
      {"the feed-forward size", spec.intermediate_size, 8}};
  for (const auto& [name, size, divisor] : sizes) {
    if (size % divisor == 0) continue;
    throw CheckpointError(cat("load: ", name, " must be a multiple of ", divisor,
                              " to run on a GPU, but is ", size, ". Use `device=\"cpu\"`."));
  }
  if (spec.heads / spec.kv_heads > kMostGroup) {
    throw CheckpointError(cat("load: at most ", kMostGroup,
                              " query heads may share a key head to run on a GPU, but ",
                              spec.heads / spec.kv_heads, " do. Use `device=\"cpu\"`."));
  }
  if (spec.vocab_size > cuda::kMostVocab) {
    throw CheckpointError(cat("load: the vocabulary must have at most ", cuda::kMostVocab,
                              " tokens to run on a GPU, but has ", spec.vocab_size,
                              ". Use `device=\"cpu\"`."));
  }
  if (options.max_tokens > kMostRows) {
    throw InvalidArgument(cat("load: `prefill_chunk` and `max_sequences` must be at most ",
                              kMostRows, " together on a GPU, but are ", options.max_tokens, "."),
                          "prefill_chunk");
  }
  if (options.pages > kMostPages) {
    throw InvalidArgument(
        cat("load: `sinks` and `window` must have at most ", kMostPages, " pages of ", kPageRows,
            " tokens on a GPU, but have ", options.pages, "."),
        "window");
  }
  return spec;
}

int64_t scratch_pages(const CudaDecoderOptions& options) {
  return ForwardPlan::most_scratch_pages(options.max_tokens, options.max_sequences);
}

// Of a step that draws for all seats.
int64_t most_draws(const CudaDecoderOptions& options) {
  return std::max(options.max_sequences, bucket_rows(options.max_sequences));
}

}  // namespace

CudaDecoder::CudaDecoder(const DecoderSpec& spec, const DecoderWeights& weights,
                         const cuda::Plugin& plugin, cuda::Stream stream, ThreadPool* threads,
                         const CudaDecoderOptions& options)
    : spec_(checked(spec, options)),
      plugin_(plugin),
      runtime_(plugin.runtime),
      stream_(stream),
      options_(options),
      angles_(spec.inverse_frequencies, spec.attention_factor),
      layers_(spec, copy_to_gpu(spec, weights, plugin.runtime, stream, threads), plugin, stream,
              {.page_shape = page_shape(),
               .rows = std::max(options.max_tokens, bucket_rows(options.max_sequences)),
               .split_pages = options.pages,
               .scratch_pages = scratch_pages(options)}),
      sampling_(plugin, stream,
                {.vocab = spec.vocab_size,
                 .seats = options.max_sequences,
                 .capacity = options.pages * kPageRows,
                 .rows = std::min(most_draws(options), kLogitRows)}),
      cut_(plugin, stream, Angles(spec.inverse_frequencies), spec.pairing),
      graph_memory_(plugin.runtime, stream),
      direct_memory_(plugin.runtime, stream),
      graphs_(plugin.runtime, stream),
      ends_{cuda::OwnEvent(plugin.runtime), cuda::OwnEvent(plugin.runtime)},
      forward_logits_(
          plugin.runtime, stream,
          {.vocab = spec.vocab_size, .splits = layers_.logit_splits(), .rows = kLogitRows}),
      step_logits_(plugin.runtime, stream,
                   {.vocab = spec.vocab_size,
                    .splits = layers_.logit_splits(),
                    .rows = options.max_sequences}),
      plan_(options.max_tokens, scratch_pages(options)),
      calls_(options.max_tokens) {
  const int64_t seats = options.max_sequences;
  results_ = cuda::take_pinned(
      runtime_, 2 * most_draws(options) * int64_t{sizeof(cuda::SampledRow)}, "drawn tokens");
  reserve_direct(0);
  spans_.reserve(seats);
  for (auto& drawn : drawn_) drawn.reserve(seats);
  capture_graphs();
}

CudaDecoder::~CudaDecoder() { runtime_.finish(stream_); }  // what is freed is used no more

void CudaDecoder::release() {
  runtime_.finish(stream_);  // whatever became of it
  graphs_.release();
  forward_logits_.release();
  step_logits_.release();
  results_.reset();
  graph_memory_.release();
  direct_memory_.release();
  layers_.release();
  sampling_.release();
}

int64_t CudaDecoder::scratch_bytes() const {
  return layers_.scratch_bytes() + sampling_.scratch_bytes() + graph_memory_.bytes() +
         direct_memory_.bytes();
}

StepShape CudaDecoder::bucket_shape(int64_t rows) const {
  return {.rows = rows,
          .sequences = rows,
          .page_ids = rows * spec_.layers * options_.pages,
          .draws = rows,
          .bias = rows * kGraphBias,
          .pairs = angles_.pairs()};
}

// For every step without a graph whose caches are no longer than planned.
void CudaDecoder::reserve_direct(int64_t bias) {
  StepShape most = bucket_shape(seats());
  most.rows = options_.max_tokens;
  most.bias = std::max(most.bias, bias);
  direct_memory_.reserve(StepBlock(nullptr, most).bytes);
}

void CudaDecoder::capture_graphs() {
  const int64_t most = bucket_rows(options_.max_sequences);
  graph_memory_.reserve(StepBlock(nullptr, bucket_shape(most)).bytes);
  for (const int64_t rows : kBuckets) {
    if (rows > most) break;
    const CudaCalls calls = CudaCalls::of_bucket(rows);
    fill_idle(StepBlock(graph_memory_.here(0), bucket_shape(rows)), 0, rows);
    graphs_.add(bucket_shape(rows), [&](const StepShape& shape, int64_t parity) {
      const StepBlock there(graph_memory_.there(), shape);
      send(StepBlock(graph_memory_.here(parity), shape), there);
      run(calls, there, parity);
    });
  }
}

void CudaDecoder::forward(std::span<const ForwardSpan> spans, float* logits) {
  SINKSTREAM_CHECK(in_flight() == 0, in_flight(), " steps are under way");
  plan_.make(spans);
  SINKSTREAM_CHECK(plan_.rows() >= 1 && plan_.rows() <= max_tokens(), "a forward has ",
                   plan_.rows(), " tokens");
  calls_.begin(plan_, options_.pages);
  for (const ForwardPlan::Piece& piece : plan_.pieces) {
    calls_.want(piece.row + piece.count - piece.wanted, piece.wanted);
  }
  const StepShape shape = {.rows = plan_.rows(),
                           .sequences = std::ssize(plan_.pieces),
                           .page_ids = count_page_ids(plan_),
                           .pairs = angles_.pairs()};
  direct_memory_.reserve(StepBlock(nullptr, shape).bytes);
  const StepBlock here(direct_memory_.here(0), shape), there(direct_memory_.there(), shape);
  fill_rows(here, plan_, angles_, layers_.scratch_pages());
  send(here, there);
  layers_.compute({calls_, there, sampling_.drawn()});
  for (int64_t row = 0; row < calls_.wanted; row += kLogitRows) {
    const int64_t rows = std::min(kLogitRows, calls_.wanted - row);
    forward_logits_.bring(layers_.logits(row, rows), 0, rows, 0);
    check(runtime_.finish(stream_), "a forward");
    forward_logits_.add_up(rows, logits + row * spec_.vocab_size);
  }
  // The step block is written anew by the next one.
  check(runtime_.finish(stream_), "a forward");
  for (const ForwardSpan& span : spans) span.cache->advance(span.count);
}

void CudaDecoder::evict_range(SequenceCache* cache, int64_t begin, int64_t end) {
  SINKSTREAM_CHECK(in_flight() == 0, in_flight(), " steps are under way");
  cut_.evict_range(cache, begin, end, direct_memory_);
}

void CudaDecoder::begin_sampling(int64_t seat, const SamplingParams& params, const Window& window,
                                 std::span<const int32_t> seen) {
  // Here it fails this sequence alone where there is no memory.
  reserve_direct(sampling_.bias_count() + std::ssize(params.logit_bias));
  sampling_.begin(seat, params, window, seen, launched_, awaited_);
}

void CudaDecoder::launch(std::span<const SampleSpan> spans) {
  SINKSTREAM_CHECK(in_flight() < 2, in_flight(), " steps are under way");
  SINKSTREAM_CHECK(!spans.empty() && std::ssize(spans) <= seats(), "a step has ", spans.size(),
                   " spans");
  plan(spans);
  if (const CudaGraphs::Bucket* bucket = bucket_for(spans)) {
    launch_graph(*bucket, spans);
  } else {
    launch_directly(spans);
  }
  check(runtime_.record(ends_[launched_ % 2].get(), stream_), "a step");
  ++launched_;
}

void CudaDecoder::plan(std::span<const SampleSpan> spans) {
  spans_.clear();
  for (const SampleSpan& span : spans) {
    SINKSTREAM_CHECK(span.seat >= 0 && span.seat < seats(), "seat ", span.seat, " of ", seats());
    SINKSTREAM_CHECK(span.tokens != nullptr || span.count == 1, "a seat has drawn one token, not ",
                     span.count);
    ForwardSpan& forward = spans_.emplace_back();
    forward.cache = span.cache;
    forward.tokens = span.tokens != nullptr ? span.tokens : sampling_.id_of_sampled(span.seat);
    forward.count = span.count;
    forward.in_flight = span.in_flight;
  }
  plan_.make(spans_);
  SINKSTREAM_CHECK(plan_.rows() <= max_tokens(), "a step has ", plan_.rows(), " tokens");
}

// The bucket whose graph computes this step; null: none does.
const CudaGraphs::Bucket* CudaDecoder::bucket_for(std::span<const SampleSpan> spans) const {
  const CudaGraphs::Bucket* bucket = graphs_.find(std::ssize(spans));
  if (bucket == nullptr) return nullptr;
  int64_t bias = 0;
  for (const SampleSpan& span : spans) {
    const bool is_draw = span.count == 1 && span.wants == SampleSpan::Wants::kToken;
    const bool tells_penalties = span.tokens != nullptr && sampling_.has_penalties(span.seat);
    if (!is_draw || tells_penalties || span.cache->pages_per_layer() > options_.pages) {
      return nullptr;
    }
    bias += sampling_.bias_count(span.seat);
  }
  return bias <= bucket->shape.bias ? bucket : nullptr;
}

void CudaDecoder::launch_graph(const CudaGraphs::Bucket& bucket,
                               std::span<const SampleSpan> spans) {
  const int64_t parity = launched_ % 2, rows = std::ssize(spans);
  const StepBlock here(graph_memory_.here(parity), bucket.shape);
  fill_rows(here, plan_, angles_, layers_.scratch_pages());
  int64_t bias = 0;
  for (int64_t row = 0; row < rows; ++row) {
    bias = sampling_.fill(here, row, spans[row].seat, row, bias);
  }
  fill_idle(here, rows, bucket.shape.rows);
  check(runtime_.launch_graph(bucket.graphs[parity], stream_), "a step");
  steps_[parity] = {.draws = rows, .logits = 0};
}

void CudaDecoder::launch_directly(std::span<const SampleSpan> spans) {
  const int64_t parity = launched_ % 2;
  list_calls(spans);
  const InFlight step = {.draws = calls_.draws, .logits = calls_.wanted - calls_.draws};
  SINKSTREAM_CHECK(step.logits == 0 || in_flight() == 0 || steps_[1 - parity].logits == 0,
                   "two steps under way want logits");
  StepShape shape = {.rows = plan_.rows(),
                     .sequences = std::ssize(plan_.pieces),
                     .page_ids = count_page_ids(plan_),
                     .draws = calls_.draws,
                     .pairs = angles_.pairs()};
  for (const SampleSpan& span : spans) shape.bias += sampling_.bias_count(span.seat);
  direct_memory_.reserve(StepBlock(nullptr, shape).bytes);
  const StepBlock here(direct_memory_.here(parity), shape), there(direct_memory_.there(), shape);
  fill_rows(here, plan_, angles_, layers_.scratch_pages());
  int64_t row = 0, draw = 0, bias = 0;
  for (const SampleSpan& span : spans) {
    row += span.count;
    if (span.wants != SampleSpan::Wants::kToken) continue;
    bias = sampling_.fill(here, draw++, span.seat, row - 1, bias);
  }
  send(here, there);
  append_prompts(spans, there);
  run(calls_, there, parity);
  steps_[parity] = step;
}

// Rows from which tokens are drawn come before those whose logits the host wants.
void CudaDecoder::list_calls(std::span<const SampleSpan> spans) {
  calls_.begin(plan_, options_.pages);
  for (const auto wants : {SampleSpan::Wants::kToken, SampleSpan::Wants::kLogits}) {
    int64_t row = 0;
    for (const SampleSpan& span : spans) {
      row += span.count;
      if (span.wants == wants) calls_.want(row - 1, 1);
    }
    if (wants == SampleSpan::Wants::kToken) calls_.draws = calls_.wanted;
  }
}

// What a seat draws its penalties are told by the draw.
void CudaDecoder::append_prompts(std::span<const SampleSpan> spans, const StepBlock& there) {
  int64_t row = 0;
  for (const SampleSpan& span : spans) {
    if (span.tokens != nullptr && sampling_.has_penalties(span.seat)) {
      sampling_.append(span.seat, there.ids + row, span.count);
    }
    row += span.count;
  }
}

SampledStep CudaDecoder::await() {
  SINKSTREAM_CHECK(in_flight() > 0, "no step is under way");
  const int64_t parity = awaited_ % 2;
  check(runtime_.await(ends_[parity].get()), "a step");
  ++awaited_;
  std::vector<SampledToken>& drawn = drawn_[parity];
  drawn.clear();
  for (int64_t i = 0; i < steps_[parity].draws; ++i) {
    const cuda::SampledRow& row = results(parity)[i];
    drawn.push_back({row.token, row.logprob, row.is_finite != 0});
  }
  const int64_t rows = steps_[parity].logits;
  return {drawn, rows > 0 ? step_logits_.add_up(rows) : nullptr};
}

void CudaDecoder::send(const StepBlock& here, const StepBlock& there) {
  check(runtime_.copy(there.base, here.base, here.bytes, stream_), "sending a step's rows");
}

// What a step does once its rows are on the GPU.
void CudaDecoder::run(const CudaCalls& calls, const StepBlock& there, int64_t parity) {
  layers_.compute({calls, there, sampling_.drawn()});
  for (int64_t row = 0; row < calls.wanted; row += kLogitRows) {
    const int64_t rows = std::min(kLogitRows, calls.wanted - row);
    const int64_t draws = std::clamp<int64_t>(calls.draws - row, 0, rows);
    const cuda::Partials logits = layers_.logits(row, rows);
    if (draws > 0) sampling_.draw(logits, there, row, draws, results(parity) + row);
    if (draws < rows) {
      step_logits_.bring(logits, draws, rows - draws, row + draws - calls.draws);
    }
  }
}

cuda::SampledRow* CudaDecoder::results(int64_t parity) const {
  return reinterpret_cast<cuda::SampledRow*>(results_.get()) + parity * most_draws(options_);
}

void CudaDecoder::check(cuda::Status status, const char* what) const {
  cuda::check(runtime_, status, what);
}

}  // namespace sinkstream
