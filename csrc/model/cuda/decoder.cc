#include "model/cuda/decoder.h"

#include <algorithm>

#include "common/check.h"
#include "common/errors.h"
#include "kernels/cuda/gpu.h"

namespace sinkstream {

namespace {

constexpr int64_t kMostGroup = 128;    // of AttentionArgs::heads
constexpr int64_t kMostRows = 65'535;  // of a grid's second or third dimension
// Bias entries per row of a graph; a step with more is launched without a graph.
constexpr int64_t kGraphBias = 32;

const DecoderSpec& checked(const DecoderSpec& spec, const CudaDecoderOptions& options) {
  const auto require_multiple = [](const char* name, int64_t size, int64_t divisor) {
    if (size % divisor == 0) return;
    throw CheckpointError(cat("load: ", name, " must be a multiple of ", divisor,
                              " on a GPU, but is ", size, ". Use `device=\"cpu\"`."));
  };
  const auto refuse_if = [](bool has_it, const char* what) {
    if (!has_it) return;
    throw CheckpointError(cat("load: a model on a GPU must not have ", what,
                              ", but this one has some. Use `device=\"cpu\"`."));
  };
  refuse_if(spec.logit_bias, "biases of logits");
  for (const BlockSpec& block : spec.blocks) {
    refuse_if(block.mixer.index() != 0, "recurrent layers");
    const AttentionSpec& attention = block.attention();
    refuse_if(attention.qk_norm == QkNorm::kRotatedHead, "norms after the rotation");
    const ExpertsSpec* const experts = block.experts();
    const DenseSpec& mlp = experts == nullptr ? block.dense() : experts->expert;
    refuse_if(mlp.activation == Activation::kXielu, "xIELU activations");
    require_multiple("the head size", attention.head_dim, 16);
    const int64_t sharing = attention.heads / attention.kv_heads;
    if (sharing > kMostGroup) {
      throw CheckpointError(cat("load: on a GPU, at most ", kMostGroup,
                                " query heads may share a key head, but ", sharing,
                                " do. Use `device=\"cpu\"`."));
    }
    require_multiple(experts == nullptr ? "the feed-forward size" : "the size of an expert",
                     mlp.intermediate_size, 8);
    if (experts != nullptr) {
      require_multiple("the size of the shared expert", experts->shared_size, 8);
    }
  }
  require_multiple("the hidden size", spec.hidden_size, 8);
  if (spec.vocab_size > cuda::kMostVocab) {
    throw CheckpointError(cat("load: the vocabulary must have at most ", cuda::kMostVocab,
                              " tokens on a GPU, but has ", spec.vocab_size,
                              ". Use `device=\"cpu\"`."));
  }
  if (options.max_tokens > kMostRows) {
    throw InvalidArgument(cat("load: `prefill_chunk` + `max_sequences` must be at most ", kMostRows,
                              " on a GPU, but is ", options.max_tokens, "."),
                          "prefill_chunk");
  }
  const int64_t runs = CudaLayers::most_runs(spec, options.max_tokens);
  if (runs > kMostRows) {
    throw InvalidArgument(cat("load: the ", options.max_tokens,
                              " tokens of `prefill_chunk` + `max_sequences` must have at most ",
                              kMostRows, " runs of rows at experts on a GPU, but can have ", runs,
                              ". Use a smaller `prefill_chunk`."),
                          "prefill_chunk");
  }
  return spec;
}

int64_t scratch_pages(const CudaDecoderOptions& options) {
  return ForwardPlan::most_scratch_pages(options.max_tokens, options.max_sequences);
}

// Those of a step in which every sequence decodes.
int64_t split_pages(const CudaDecoderOptions& options) {
  return options.max_sequences * options.pages;
}

int64_t most_pages_per_layer(const SequenceCache& cache) {
  int64_t most = 0;
  for (int64_t group = 0; group < cache.group_count(); ++group) {
    most = std::max(most, cache.group(group).pages_per_layer());
  }
  return most;
}

// The maximum number of rows that a step samples.
int64_t max_samples(const CudaDecoderOptions& options) {
  return std::max(options.max_sequences + options.max_drafts, bucket_rows(options.max_sequences));
}

// After how many of its rows tokens are sampled.
int64_t sampled_rows(const StepSpan& span) {
  return span.wants == StepSpan::Wants::kToken ? 1 + span.drafts : 0;
}

}  // namespace

CudaDecoder::CudaDecoder(const DecoderSpec& spec, const DecoderWeights& weights,
                         const cuda::Plugin& plugin, cuda::Stream stream, ThreadPool* threads,
                         const CudaDecoderOptions& options)
    : spec_(checked(spec, options)),
      group_count_(spec.cache_layers().group_count()),
      plugin_(plugin),
      runtime_(plugin.runtime),
      stream_(stream),
      options_(options),
      views_(spec),
      layers_(spec, views_, copy_to_gpu(spec, weights, plugin.runtime, stream, threads), plugin,
              stream,
              {.cache_type = options.cache_type,
               .rows = std::max(options.max_tokens, bucket_rows(options.max_sequences)),
               .split_pages = split_pages(options),
               .scratch_pages = scratch_pages(options)}),
      sampling_(plugin, stream,
                {.vocab = spec.vocab_size,
                 .bend = layers_.logit_bend(),
                 .seats = options.max_sequences,
                 .capacity = options.pages * kPageRows,
                 .rows = std::min(max_samples(options), kLogitRows)}),
      evictor_(plugin, stream, spec.cache_layers(), views_),
      graph_memory_(plugin.runtime, stream),
      direct_memory_(plugin.runtime, stream),
      graphs_(plugin.runtime, stream),
      ends_{cuda::UniqueEvent(plugin.runtime), cuda::UniqueEvent(plugin.runtime)},
      forward_logits_(plugin.runtime, stream,
                      {.vocab = spec.vocab_size,
                       .splits = layers_.logit_splits(),
                       .rows = kLogitRows,
                       .bend = layers_.logit_bend()}),
      step_logits_(plugin.runtime, stream,
                   {.vocab = spec.vocab_size,
                    .splits = layers_.logit_splits(),
                    .rows = options.max_sequences + most_scored_rows(spec.vocab_size),
                    .bend = layers_.logit_bend()}),
      plan_(options.max_tokens, scratch_pages(options), group_count_),
      launches_(options.max_tokens, group_count_) {
  const int64_t seats = options.max_sequences;
  results_ = cuda::allocate_pinned(
      runtime_, 2 * max_samples(options) * int64_t{sizeof(cuda::SampledRow)}, "sampled tokens");
  reserve_direct(0);
  spans_.reserve(seats);
  for (auto& sampled : sampled_) sampled.reserve(max_samples(options));
  for (auto& runs : runs_) runs.reserve(seats);
  capture_graphs();
}

CudaDecoder::~CudaDecoder() { runtime_.synchronize(stream_); }  // what is freed is no longer in use

void CudaDecoder::release() {
  runtime_.synchronize(stream_);  // even if it failed
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
  return {.groups = group_count_,
          .rows = rows,
          .sequences = rows,
          .page_ids = rows * spec_.layers() * options_.pages,
          .samples = rows,
          .bias = rows * kGraphBias,
          .views = &views_};
}

// Enough for every step without a graph, as long as caches are no longer than planned.
void CudaDecoder::reserve_direct(int64_t bias) {
  StepShape most = bucket_shape(seats());
  most.rows = options_.max_tokens;
  most.samples += options_.max_drafts;
  most.bias = std::max(most.bias, bias);
  direct_memory_.reserve(StepBlock(nullptr, most).bytes);
}

void CudaDecoder::capture_graphs() {
  const int64_t most = bucket_rows(options_.max_sequences);
  graph_memory_.reserve(StepBlock(nullptr, bucket_shape(most)).bytes);
  for (const int64_t rows : kBuckets) {
    if (rows > most) break;
    const StepLaunches launches = StepLaunches::of_bucket(rows, group_count_);
    fill_idle(StepBlock(graph_memory_.host(0), bucket_shape(rows)), 0, rows);
    graphs_.add(bucket_shape(rows), [&](const StepShape& shape, int64_t parity) {
      const StepBlock device(graph_memory_.device(), shape);
      copy_to_device(StepBlock(graph_memory_.host(parity), shape), device);
      run(launches, device, parity);
    });
  }
}

void CudaDecoder::forward(std::span<const ForwardSpan> spans, float* logits) {
  SINKSTREAM_CHECK(in_flight() == 0, in_flight(), " steps are in flight");
  plan_.make(spans);
  SINKSTREAM_CHECK(plan_.rows() >= 1 && plan_.rows() <= max_tokens(), "a forward pass has ",
                   plan_.rows(), " tokens");
  launches_.begin(plan_, split_pages(options_));
  for (const ForwardPlan::Piece& piece : plan_.groups.front().pieces) {
    launches_.add_logits(piece.row + piece.count - piece.wanted, piece.wanted);
  }
  const StepShape shape = shape_of(plan_, views_);
  direct_memory_.reserve(StepBlock(nullptr, shape).bytes);
  const StepBlock host(direct_memory_.host(0), shape), device(direct_memory_.device(), shape);
  fill_rows(host, plan_, layers_.scratch_pages());
  copy_to_device(host, device);
  layers_.compute({launches_, device, sampling_.sampled_ids()});
  for (int64_t row = 0; row < launches_.logit_rows; row += kLogitRows) {
    const int64_t rows = std::min(kLogitRows, launches_.logit_rows - row);
    forward_logits_.copy_from_device(layers_.logits(row, rows), 0, rows, 0);
    check(runtime_.synchronize(stream_), "a forward pass");
    forward_logits_.sum_splits(rows, logits + row * spec_.vocab_size);
  }
  // The next forward pass overwrites the step block.
  check(runtime_.synchronize(stream_), "a forward pass");
}

void CudaDecoder::evict_range(SequenceCache* cache, int64_t begin, int64_t end) {
  SINKSTREAM_CHECK(in_flight() == 0, in_flight(), " steps are in flight");
  evictor_.evict_range(cache, begin, end, direct_memory_);
}

void CudaDecoder::begin_sampling(int64_t seat, const SamplingParams& params, const Window& window,
                                 std::span<const int32_t> seen) {
  // If memory is short, failing here affects only this sequence.
  reserve_direct(sampling_.bias_count() + std::ssize(params.logit_bias));
  sampling_.begin(seat, params, window, seen, launched_, awaited_);
}

void CudaDecoder::launch(std::span<const StepSpan> spans) {
  SINKSTREAM_CHECK(in_flight() < most_in_flight(), in_flight(), " steps are in flight");
  SINKSTREAM_CHECK(!spans.empty() && std::ssize(spans) <= seats(), "a step has ", spans.size(),
                   " spans");
  plan(spans);
  std::vector<int32_t>& runs = runs_[launched_ % 2];
  runs.clear();
  for (const StepSpan& span : spans) {
    if (sampled_rows(span) > 0) runs.push_back(static_cast<int32_t>(sampled_rows(span)));
  }
  if (const CudaGraphs::Bucket* bucket = bucket_for(spans)) {
    launch_graph(*bucket, spans);
  } else {
    launch_directly(spans);
  }
  check(runtime_.record(ends_[launched_ % 2].get(), stream_), "a step");
  ++launched_;
}

void CudaDecoder::plan(std::span<const StepSpan> spans) {
  spans_.clear();
  for (const StepSpan& span : spans) {
    SINKSTREAM_CHECK(span.seat >= 0 && span.seat < seats(), "seat ", span.seat, " is not in [0, ",
                     seats(), ")");
    SINKSTREAM_CHECK(span.tokens != nullptr || span.count == 1,
                     "a seat has sampled one token, not ", span.count);
    SINKSTREAM_CHECK(span.drafts == 0 || (span.tokens != nullptr && span.count == 1 + span.drafts),
                     "a span of ", span.count, " tokens has ", span.drafts,
                     " drafts, which a GPU does not guess");
    ForwardSpan& forward = spans_.emplace_back();
    forward.cache = span.cache;
    forward.tokens = span.tokens != nullptr ? span.tokens : sampling_.last_sampled(span.seat);
    forward.count = span.count;
    forward.in_flight = span.in_flight;
    forward.drafts = span.drafts;
  }
  plan_.make(spans_);
  SINKSTREAM_CHECK(plan_.rows() <= max_tokens(), "a step has ", plan_.rows(), " tokens");
}

// The bucket whose graph computes this step; null if none does.
const CudaGraphs::Bucket* CudaDecoder::bucket_for(std::span<const StepSpan> spans) const {
  const CudaGraphs::Bucket* bucket = graphs_.find(std::ssize(spans));
  if (bucket == nullptr) return nullptr;
  int64_t bias = 0;
  for (const StepSpan& span : spans) {
    const bool samples_one_row = span.count == 1 && span.wants == StepSpan::Wants::kToken;
    const bool appends_to_penalties = span.tokens != nullptr && sampling_.has_penalties(span.seat);
    if (!samples_one_row || appends_to_penalties ||
        most_pages_per_layer(*span.cache) > options_.pages) {
      return nullptr;
    }
    bias += sampling_.bias_count(span.seat);
  }
  return bias <= bucket->shape.bias ? bucket : nullptr;
}

void CudaDecoder::launch_graph(const CudaGraphs::Bucket& bucket, std::span<const StepSpan> spans) {
  const int64_t parity = launched_ % 2, rows = std::ssize(spans);
  const StepBlock host(graph_memory_.host(parity), bucket.shape);
  fill_rows(host, plan_, layers_.scratch_pages());
  int64_t bias = 0;
  for (int64_t row = 0; row < rows; ++row) {
    bias = sampling_.fill_rows(host, row, spans[row].seat, row, {}, bias);
  }
  fill_idle(host, rows, bucket.shape.rows);
  check(runtime_.launch_graph(bucket.graphs[parity], stream_), "a step");
  steps_[parity] = {.samples = rows, .logit_rows = 0};
}

void CudaDecoder::launch_directly(std::span<const StepSpan> spans) {
  const int64_t parity = launched_ % 2;
  plan_launches(spans);
  const InFlight step = {.samples = launches_.samples,
                         .logit_rows = launches_.logit_rows - launches_.samples};
  SINKSTREAM_CHECK(step.samples <= max_samples(options_), "a step samples ", step.samples, " rows");
  SINKSTREAM_CHECK(step.logit_rows == 0 || in_flight() == 0 || steps_[1 - parity].logit_rows == 0,
                   "two steps in flight want logits");
  StepShape shape = shape_of(plan_, views_);
  shape.samples = launches_.samples;
  for (const StepSpan& span : spans) shape.bias += sampling_.bias_count(span.seat);
  direct_memory_.reserve(StepBlock(nullptr, shape).bytes);
  const StepBlock host(direct_memory_.host(parity), shape), device(direct_memory_.device(), shape);
  fill_rows(host, plan_, layers_.scratch_pages());
  int64_t row = 0, sample = 0, bias = 0;
  for (const StepSpan& span : spans) {
    row += span.count;
    const int64_t rows = sampled_rows(span);
    if (rows == 0) continue;
    std::span<const int32_t> drafts;
    if (span.drafts > 0) drafts = std::span(span.tokens, static_cast<size_t>(rows)).subspan(1);
    bias = sampling_.fill_rows(host, sample, span.seat, row - rows, drafts, bias);
    sample += rows;
  }
  copy_to_device(host, device);
  append_to_penalties(spans, device);
  run(launches_, device, parity);
  steps_[parity] = step;
}

// Rows that sample come before those whose logits go to the host.
void CudaDecoder::plan_launches(std::span<const StepSpan> spans) {
  launches_.begin(plan_, split_pages(options_));
  const auto add_rows = [&](const auto& count_of) {
    int64_t end = 0;
    for (const StepSpan& span : spans) {
      end += span.count;
      const int64_t count = count_of(span);
      if (count > 0) launches_.add_logits(end - count, count);
    }
  };
  add_rows(sampled_rows);
  launches_.samples = launches_.logit_rows;
  for (const StepSpan& span : spans) {
    launches_.waves = std::max(launches_.waves, sampled_rows(span));
  }
  add_rows([](const StepSpan& span) { return logit_rows(span.wants, span.count); });
}

// `sample` itself appends what a seat samples to its penalties, drafts that were right included.
void CudaDecoder::append_to_penalties(std::span<const StepSpan> spans, const StepBlock& device) {
  int64_t row = 0;
  for (const StepSpan& span : spans) {
    if (span.tokens != nullptr && span.drafts == 0 && sampling_.has_penalties(span.seat)) {
      sampling_.append(span.seat, device.ids + row, span.count);
    }
    row += span.count;
  }
}

StepResult CudaDecoder::await() {
  SINKSTREAM_CHECK(in_flight() > 0, "no step is in flight");
  const int64_t parity = awaited_ % 2;
  check(runtime_.await(ends_[parity].get()), "a step");
  ++awaited_;
  std::vector<SampledToken>& sampled = sampled_[parity];
  sampled.clear();
  const cuda::SampledRow* row = results(parity);
  for (int32_t& run : runs_[parity]) {
    const cuda::SampledRow* const end = row + run;
    run = 0;
    for (; row != end; ++row) {
      if (row->token == cuda::kSkipped) continue;
      sampled.push_back({row->token, row->logprob, row->is_finite != 0});
      ++run;
    }
  }
  const int64_t rows = steps_[parity].logit_rows;
  return {.tokens = sampled,
          .runs = runs_[parity],
          .logits = rows > 0 ? step_logits_.sum_splits(rows) : nullptr};
}

void CudaDecoder::copy_to_device(const StepBlock& host, const StepBlock& device) {
  check(runtime_.copy(device.base, host.base, host.bytes, stream_), "copying a step's rows");
}

// Runs a step whose block is on the GPU.
void CudaDecoder::run(const StepLaunches& launches, const StepBlock& device, int64_t parity) {
  layers_.compute({launches, device, sampling_.sampled_ids()});
  for (int64_t row = 0; row < launches.logit_rows; row += kLogitRows) {
    const int64_t rows = std::min(kLogitRows, launches.logit_rows - row);
    const int64_t samples = std::clamp<int64_t>(launches.samples - row, 0, rows);
    const cuda::Partials logits = layers_.logits(row, rows);
    if (samples > 0) {
      sampling_.sample(logits, device, row, samples, launches.waves, results(parity) + row);
    }
    if (samples < rows) {
      step_logits_.copy_from_device(logits, samples, rows - samples,
                                    row + samples - launches.samples);
    }
  }
}

cuda::SampledRow* CudaDecoder::results(int64_t parity) const {
  return reinterpret_cast<cuda::SampledRow*>(results_.get()) + parity * max_samples(options_);
}

void CudaDecoder::check(cuda::Status status, const char* what) const {
  cuda::check(runtime_, status, what);
}

}  // namespace sinkstream
