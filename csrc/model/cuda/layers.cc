#include "model/cuda/layers.h"

#include <algorithm>
#include <utility>

#include "common/carver.h"
#include "kernels/cuda/gpu.h"

namespace sinkstream {

namespace {

constexpr int64_t kAlignment = 256;

bool has_second_norm(const BlockSpec& block) { return block.parallel && block.mlp_norm; }

bool has_full_norm(const BlockSpec& block) { return block.attention().qk_norm == QkNorm::kFull; }

}  // namespace

int64_t CudaLayers::most_runs(const DecoderSpec& spec, int64_t rows) {
  return spec.most([&](const BlockSpec& block) -> int64_t {
    const ExpertsSpec* const experts = block.experts();
    if (experts == nullptr) return 0;
    int64_t most = 0;
    for (int64_t some = 1; some <= rows; ++some) {
      const int64_t run_rows = cuda::rows_of_runs(some, experts->chosen, experts->experts);
      most = std::max(most, cuda::most_runs(some, experts->chosen, experts->experts, run_rows));
    }
    return most;
  });
}

CudaLayers::CudaLayers(const DecoderSpec& spec, const LayerViews& views, CudaWeights weights,
                       const cuda::Plugin& plugin, cuda::Stream stream,
                       const CudaLayersOptions& options)
    : spec_(spec),
      views_(views),
      layers_(spec.cache_layers()),
      weights_(std::move(weights)),
      plugin_(plugin),
      stream_(stream),
      options_(options) {
  const int64_t rows = options.rows, q = spec.most_query_size();
  const int64_t partials = std::max(weights_.output.splits() * kLogitRows * spec.vocab_size,
                                    rows * weights_.layer_partials);
  const bool has_second_norms = std::ranges::any_of(spec.blocks, has_second_norm);
  const bool has_full_norms = std::ranges::any_of(spec.blocks, has_full_norm);
  const int64_t page_bytes = options.scratch_pages * spec.most([&](const BlockSpec& block) {
    return page_shape(block.attention()).bytes();
  });
  const int64_t attention_floats = spec.most([&](const BlockSpec& block) {
    const AttentionSpec& attention = block.attention();
    return cuda::attention_scratch_floats(attention.heads, attention.head_dim, options.split_pages);
  });
  const int64_t choices = rows * spec.most_chosen();
  const int64_t runs = most_runs(spec, rows);
  const int64_t parts = choices > 0 ? 2 : 1;  // of an input: a router reads its rest, too
  const int64_t normed = rows * parts * spec.hidden_size * 2;
  const int64_t expert_rows = choices > 0 ? rows : 0;
  const auto carve = [&](Carver<kAlignment> carver) {
    hidden_ = carver.take<float>(rows * spec.hidden_size);
    normed_ = carver.take<std::byte>(normed);
    mlp_normed_ = carver.take<std::byte>(has_second_norms ? normed : 0);
    norm_scratch_ =
        carver.take<double>(has_full_norms ? cuda::rope_append_scratch_doubles(rows) : 0);
    query_window_ = carver.take<std::byte>(rows * q * 2);
    query_sink_ = carver.take<std::byte>(rows * q * 2);
    attended_ = carver.take<std::byte>(rows * q * 2);
    activated_ = carver.take<std::byte>(rows * spec.most_intermediate_size() * 2);
    ordered_ = carver.take<std::byte>(rows * parts * weights_.most_ordered * 2);
    partials_memory_ = carver.take<float>(partials);
    experts_ = {.ids = carver.take<int32_t>(choices),
                .positions = carver.take<int32_t>(choices),
                .row_of = carver.take<int32_t>(choices),
                .weights = carver.take<float>(choices),
                .runs = carver.take<cuda::ExpertRun>(runs),
                .run_count = carver.take<int32_t>(1),
                .shared = carver.take<float>(rows * weights_.shared_partials),
                .shared_gate = carver.take<float>(expert_rows * cuda::kMostSplits),
                .sums = carver.take<float>(expert_rows * spec.hidden_size)};
    attention_scratch_ = carver.take<float>(attention_floats);
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
                               .sampled = step.sampled_ids,
                               .scale = spec_.embedding_scale},
                              stream_),
        "embedding");
  residual_ = {};
  for (int64_t layer = 0; layer < spec_.layers(); ++layer) {
    // Whether anything but its keys and values is read.
    const bool is_needed = layer + 1 < spec_.layers() || launches.logit_rows > 0;
    run(step, layer, is_needed);
  }
  for (const StepLaunches::LogitRun& run : launches.logit_runs) {
    normalize(spec_.final_norm, weights_.final_norm, run.row, run.rows, run.to);
  }
}

cuda::Partials CudaLayers::logits(int64_t row, int64_t rows) {
  return multiply(weights_.output, nullptr, normed_ + row * spec_.hidden_size * 2,
                  spec_.hidden_size, rows, partials_memory_);
}

// Note [Blocks] of model/decoder_spec.h. What a block adds is pending until the next norm.
void CudaLayers::run(const CudaStep& step, int64_t layer, bool is_needed) {
  const BlockSpec& block = spec_.block(layer);
  const CudaLayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t rows = step.launches.rows;
  std::byte* const mlp_input = has_second_norm(block) ? mlp_normed_ : normed_;
  std::byte* const rest = rest_of(block, mlp_input, rows);
  if (has_second_norm(block)) {
    add_residual({.norms = {weights.attention_norm, weights.mlp_norm},
                  .outs = {normed_, mlp_normed_},
                  .rest = rest,
                  .kind = block.norm.kind,
                  .eps = block.norm.eps},
                 0, rows);
  } else {
    normalize(block.norm, weights.attention_norm, 0, rows, 0, block.parallel ? rest : nullptr);
  }
  partials_ =
      multiply(weights.qkv, weights.qkv_bias, normed_, spec_.hidden_size, rows, partials_memory_);
  attend(step, layer, is_needed);
  if (!is_needed) return;
  partials_ = multiply(weights.o, weights.o_bias, attended_, block.attention().query_size(), rows,
                       partials_memory_);
  residual_ = {.is_pending = true,
               .post_norm = weights.attention_post_norm,
               .norm = block.norm,
               .scale = block.residual_scale};
  if (block.parallel) {
    add_residual({}, 0, rows);  // its memory is needed
  } else {
    normalize(block.norm, weights.mlp_norm, 0, rows, 0, rest);
  }
  transform(step, layer, mlp_input);
}

void CudaLayers::attend(const CudaStep& step, int64_t layer, bool is_needed) {
  const auto group = static_cast<size_t>(layers_.layer_in_group(layer).group);
  const StepLaunches::Group& launches = step.launches.groups[group];
  const LayerCache cache = cache_of(step.block, layer);
  for (const StepLaunches::Round& round : launches.rounds) {
    append(step.block, cache, round, layer);
    for (size_t i = 0; is_needed && i < round.count; ++i) {
      attend(cache, launches.attentions[round.attention + i], layer);
    }
    for (size_t i = 0; i < round.copy_count; ++i) {
      copy_pages(cache, launches.copies[round.copy + i]);
    }
  }
}

CudaLayers::LayerCache CudaLayers::cache_of(const StepBlock& block, int64_t layer) const {
  const auto [group, layer_in_group] = layers_.layer_in_group(layer);
  const StepBlock::Group rows = block.group(group);
  return {.rows = rows,
          .pages = {.ids = block.page_ids,
                    .sequences = rows.sequences,
                    .layer = static_cast<int32_t>(layer_in_group),
                    .shape = page_shape(spec_.block(layer).attention())}};
}

void CudaLayers::append(const StepBlock& block, const LayerCache& cache,
                        const StepLaunches::Round& round, int64_t layer) {
  const BlockSpec& spec = spec_.block(layer);
  const AttentionSpec& attention = spec.attention();
  const CudaLayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const LayerViews::View& view = views_.view_of(layer);
  const LayerViews::Rope& rope = views_.rope_of(view);
  const auto rotation = [&](const StepBlock::AngleRows& angles) {
    const int64_t before = round.row * rope.pairs();
    return Rotation{.cos = angles.cos + before,
                    .sin = angles.sin + before,
                    .rotary_dim = rope.spec.rotary_dim(),
                    .pairing = rope.spec.pairing};
  };
  const int64_t q = attention.query_size();
  cuda::RopeAppendArgs args;
  args.qkv = from_row(partials_, round.row);
  args.clip = attention.clip;
  args.query_norm = weights.q_norm;
  args.key_norm = weights.k_norm;
  args.norm_kind = spec.norm.kind;
  args.norm_extent = has_full_norm(spec) ? cuda::NormExtent::kAllHeads : cuda::NormExtent::kHead;
  args.norm_eps = spec.norm.eps;
  args.scratch = norm_scratch_;
  args.temperature = attention.temperature;
  args.temperature_length = attention.temperature_length;
  args.rows = round.rows;
  args.heads = static_cast<int32_t>(attention.heads);
  args.tokens = cache.rows.tokens + round.row;
  args.by_index = rotation(block.index_angles(rope));
  args.by_rank = rotation(block.rank_angles(view));
  args.pages = cache.pages;
  args.query_window = query_window_ + round.row * q * 2;
  args.query_sink = query_sink_ + round.row * q * 2;
  check(plugin_.ops.rope_append(args, stream_), "rope_append");
}

void CudaLayers::attend(const LayerCache& cache, const StepLaunches::Attention& attention,
                        int64_t layer) {
  const AttentionSpec& spec = spec_.block(layer).attention();
  const int64_t q = spec.query_size();
  cuda::AttentionArgs args;
  args.query_window = query_window_ + attention.row * q * 2;
  args.query_sink = query_sink_ + attention.row * q * 2;
  args.out = attended_ + attention.row * q * 2;
  args.rows = cache.rows.tokens + attention.row;
  args.row_count = static_cast<int32_t>(attention.rows);
  args.heads = static_cast<int32_t>(spec.heads);
  args.pages = cache.pages;
  args.scale = spec.scale;
  args.soft_cap = spec.soft_cap;
  args.slopes = weights_.layers[static_cast<size_t>(layer)].slopes;
  args.sink_logits = weights_.layers[static_cast<size_t>(layer)].sink_logits;
  args.span_rows = static_cast<int32_t>(attention.span_rows);
  args.page_begins = cache.rows.page_begins + attention.row;
  args.page_capacity = static_cast<int32_t>(options_.split_pages);
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

void CudaLayers::add_residual(cuda::NormArgs args, int64_t row, int64_t rows) {
  args.hidden = hidden_ + row * spec_.hidden_size;
  if (residual_.is_pending) {
    args.residual = from_row(partials_, row);
    args.post = residual_.post_norm;
    args.post_kind = residual_.norm.kind;
    args.post_eps = residual_.norm.eps;
    args.residual_scale = residual_.scale;
  }
  args.rows = rows;
  args.dim = spec_.hidden_size;
  check(plugin_.ops.norm(args, stream_), "norm");
}

void CudaLayers::normalize(const NormSpec& norm, const NormWeights& weights, int64_t row,
                           int64_t rows, int64_t to, std::byte* rest) {
  add_residual({.norms = {weights, {}},
                .outs = {normed_ + to * spec_.hidden_size * 2, nullptr},
                .rest = rest,
                .kind = norm.kind,
                .eps = norm.eps},
               row, rows);
}

std::byte* CudaLayers::rest_of(const BlockSpec& block, std::byte* input, int64_t rows) const {
  return block.experts() == nullptr ? nullptr : input + rows * spec_.hidden_size * 2;
}

cuda::Partials CudaLayers::multiply(const CudaMap& map, const float* bias, const void* input,
                                    int64_t input_stride, int64_t rows, float* to) {
  const cuda::Partials partials = {
      .data = to, .splits = map.splits(), .rows = rows, .stride = map.rows()};
  int64_t column = 0;              // of the partials: the part's first row
  const int32_t* order = nullptr;  // of `ordered_`
  for (const cuda::TiledMatrix& part : map.parts) {
    cuda::LinearArgs args;
    args.weights = part;
    args.splits = partials.splits;
    if (bias != nullptr) args.bias = bias + column;
    args.input = input;
    args.input_stride = input_stride;
    if (part.order != nullptr) {
      if (part.order != order) put_in_order(part, input, input_stride, rows);
      order = part.order;
      args.input = ordered_;
      args.input_stride = part.cols;
    }
    args.rows = rows;
    args.out = to + column;
    args.out_rows = partials.rows;
    args.out_stride = partials.stride;
    check(plugin_.ops.linear(args, stream_), "linear");
    column += part.rows;
  }
  return partials;
}

// Writes ordered_.
void CudaLayers::put_in_order(const cuda::TiledMatrix& matrix, const void* input,
                              int64_t input_stride, int64_t rows) {
  check(plugin_.ops.order_columns({.input = input,
                                   .input_stride = input_stride,
                                   .order = matrix.order,
                                   .rows = rows,
                                   .cols = matrix.cols,
                                   .out = ordered_},
                                  stream_),
        "order_columns");
}

void CudaLayers::check(cuda::Status status, const char* what) const {
  cuda::check(plugin_.runtime, status, what);
}

}  // namespace sinkstream
