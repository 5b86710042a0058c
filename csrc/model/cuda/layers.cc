#include "model/cuda/layers.h"

#include <algorithm>
#include <utility>

#include "common/carver.h"

namespace sinkstream {

namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

CudaLayers::CudaLayers(const DecoderSpec& spec, CudaWeights weights, const cuda::Plugin& plugin,
                       cuda::Stream stream, const CudaLayersOptions& options)
    : spec_(spec),
      layers_(spec.cache_layers()),
      weights_(std::move(weights)),
      plugin_(plugin),
      stream_(stream),
      options_(options) {
  const int64_t rows = options.rows, q = spec.query_size();
  int64_t partials = weights_.output.splits() * kLogitRows * spec.vocab_size;
  for (const CudaLayerWeights& layer : weights_.layers) {
    for (const CudaMap* map : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      partials = std::max(partials, map->splits() * rows * map->rows());
    }
  }
  const int64_t page_bytes = options.scratch_pages * options.page_shape.bytes();
  const auto carve = [&](Carver<kAlignment> carver) {
    hidden_ = carver.take<float>(rows * spec.hidden_size);
    normed_ = carver.take<std::byte>(rows * spec.hidden_size * 2);
    query_window_ = carver.take<std::byte>(rows * q * 2);
    query_sink_ = carver.take<std::byte>(rows * q * 2);
    attended_ = carver.take<std::byte>(rows * q * 2);
    activated_ = carver.take<std::byte>(rows * spec.most_intermediate_size() * 2);
    partials_memory_ = carver.take<float>(partials);
    attention_scratch_ = carver.take<float>(cuda::attention_scratch_floats(
        std::min(rows, kMostSplitRows), spec.heads(), spec.head_dim(), options.split_pages));
    scratch_pages_ = carver.take<std::byte>(page_bytes);
    return carver.used();
  };
  scratch_bytes_ = carve(Carver<kAlignment>(nullptr));
  scratch_ = cuda::allocate_device(plugin.runtime, scratch_bytes_, "the decoder's scratch");
  carve(Carver<kAlignment>(scratch_.get()));
  // Attention does not write idle rows, but the next map multiplies them like all others.
  check(plugin.runtime.fill(attended_, 0, rows * q * 2, stream), "clearing scratch");
  // Rows past a chunk's end are copied with their page, though no query sees them: NaN at first.
  check(plugin.runtime.fill(scratch_pages_, 0xff, page_bytes, stream), "clearing scratch");
}

int32_t CudaLayers::logit_splits() const { return weights_.output.splits(); }

void CudaLayers::release() {
  weights_.memory.reset();
  scratch_.reset();
}

void CudaLayers::compute(const CudaStep& step) {
  const StepLaunches& launches = step.launches;
  check(plugin_.ops.embedding({.ids = step.block.ids,
                               .rows = launches.rows,
                               .table = weights_.embedding,
                               .out = hidden_,
                               .sampled = step.sampled_ids},
                              stream_),
        "embedding");
  has_residual_ = false;
  for (int64_t layer = 0; layer < spec_.layers(); ++layer) {
    // Whether anything but its keys and values is read.
    const bool is_needed = layer + 1 < spec_.layers() || launches.logit_rows > 0;
    attend(step, layer, is_needed);
    if (is_needed) transform(weights_.layers[layer], launches.rows);
  }
  for (const StepLaunches::LogitRun& run : launches.logit_runs) {
    normalize(weights_.final_norm, run.row, run.rows, run.to);
  }
}

cuda::Partials CudaLayers::logits(int64_t row, int64_t rows) {
  multiply(weights_.output, nullptr, normed_ + row * spec_.hidden_size * 2, spec_.hidden_size,
           rows);
  return partials_;
}

void CudaLayers::attend(const CudaStep& step, int64_t layer, bool is_needed) {
  const CudaLayerWeights& weights = weights_.layers[layer];
  const int64_t rows = step.launches.rows;
  normalize(weights.attention_norm, 0, rows, 0);
  multiply(weights.qkv, weights.qkv_bias, normed_, spec_.hidden_size, rows);
  const auto group = static_cast<size_t>(layers_.place(layer).group);
  const StepLaunches::Group& launches = step.launches.groups[group];
  const LayerCache cache = cache_of(step.block, layer);
  for (const StepLaunches::Round& round : launches.rounds) {
    append(step.block, cache, round, weights);
    for (size_t i = 0; is_needed && i < round.count; ++i) {
      attend(cache, launches.attentions[round.attention + i]);
    }
    for (size_t i = 0; i < round.copy_count; ++i) {
      copy_pages(cache, launches.copies[round.copy + i]);
    }
  }
  if (!is_needed) return;
  multiply(weights.o, weights.o_bias, attended_, spec_.query_size(), rows);
  has_residual_ = true;
}

CudaLayers::LayerCache CudaLayers::cache_of(const StepBlock& block, int64_t layer) const {
  const auto [group, place] = layers_.place(layer);
  const StepBlock::Group rows = block.group(group);
  return {rows, {block.page_ids, rows.sequences, static_cast<int32_t>(place), options_.page_shape}};
}

void CudaLayers::append(const StepBlock& block, const LayerCache& cache,
                        const StepLaunches::Round& round, const CudaLayerWeights& weights) {
  const int64_t angles = round.row * spec_.blocks.front().attention.rope.rotary_dim() / 2,
                q = spec_.query_size();
  cuda::RopeAppendArgs args;
  args.qkv = partials_from(round.row);
  args.query_norm = weights.q_norm;
  args.key_norm = weights.k_norm;
  args.norm_eps = spec_.final_norm.eps;
  args.rows = round.rows;
  args.heads = static_cast<int32_t>(spec_.heads());
  args.tokens = cache.rows.tokens + round.row;
  args.by_index = {block.index_cos + angles, block.index_sin + angles,
                   spec_.blocks.front().attention.rope.rotary_dim(),
                   spec_.blocks.front().attention.rope.pairing};
  args.by_rank = {cache.rows.rank_cos + angles, cache.rows.rank_sin + angles,
                  spec_.blocks.front().attention.rope.rotary_dim(),
                  spec_.blocks.front().attention.rope.pairing};
  args.pages = cache.pages;
  args.query_window = query_window_ + round.row * q * 2;
  args.query_sink = query_sink_ + round.row * q * 2;
  check(plugin_.ops.rope_append(args, stream_), "rope_append");
}

void CudaLayers::attend(const LayerCache& cache, const StepLaunches::Attention& attention) {
  const int64_t q = spec_.query_size();
  cuda::AttentionArgs args;
  args.query_window = query_window_ + attention.row * q * 2;
  args.query_sink = query_sink_ + attention.row * q * 2;
  args.out = attended_ + attention.row * q * 2;
  args.rows = cache.rows.tokens + attention.row;
  args.row_count = static_cast<int32_t>(attention.rows);
  args.heads = static_cast<int32_t>(spec_.heads());
  args.pages = cache.pages;
  args.scale = spec_.blocks.front().attention.scale;
  args.span_rows = static_cast<int32_t>(attention.span_rows);
  args.page_slots = static_cast<int32_t>(options_.split_pages);
  args.scratch = attention_scratch_;
  const auto op = attention.is_split ? plugin_.ops.attention_decode : plugin_.ops.attention_prefill;
  check(op(args, stream_), "attention");
}

void CudaLayers::copy_pages(const LayerCache& cache, const StepLaunches::Copy& copy) {
  check(plugin_.ops.copy_pages({.pages = cache.pages,
                                .sequence = copy.sequence,
                                .block = copy.block,
                                .count = static_cast<int32_t>(copy.count)},
                               stream_),
        "copy_pages");
}

void CudaLayers::transform(const CudaLayerWeights& layer, int64_t rows) {
  const int64_t inner = spec_.most_intermediate_size();
  normalize(layer.mlp_norm, 0, rows, 0);
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

void CudaLayers::normalize(const float* weight, int64_t row, int64_t rows, int64_t to) {
  const int64_t hidden = spec_.hidden_size;
  cuda::RmsNormArgs args;
  args.hidden = hidden_ + row * hidden;
  if (has_residual_) args.residual = partials_from(row);
  args.weight = weight;
  args.out = normed_ + to * hidden * 2;
  args.rows = rows;
  args.dim = hidden;
  args.eps = spec_.final_norm.eps;
  check(plugin_.ops.rms_norm(args, stream_), "rms_norm");
}

void CudaLayers::multiply(const CudaMap& map, const float* bias, const void* input,
                          int64_t input_stride, int64_t rows) {
  partials_ = {partials_memory_, map.splits(), rows, map.rows()};
  int64_t column = 0;  // of the partials: the part's first row
  for (const cuda::TiledMatrix& part : map.parts) {
    cuda::LinearArgs args;
    args.weights = part;
    args.splits = partials_.splits;
    if (bias != nullptr) args.bias = bias + column;
    args.input = input;
    args.input_stride = input_stride;
    args.rows = rows;
    args.out = partials_memory_ + column;
    args.out_rows = partials_.rows;
    args.out_stride = partials_.stride;
    check(plugin_.ops.linear(args, stream_), "linear");
    column += part.rows;
  }
}

cuda::Partials CudaLayers::partials_from(int64_t row) const {
  cuda::Partials partials = partials_;
  partials.data += row * partials.stride;
  return partials;
}

void CudaLayers::check(cuda::Status status, const char* what) const {
  cuda::check(plugin_.runtime, status, what);
}

}  // namespace sinkstream
