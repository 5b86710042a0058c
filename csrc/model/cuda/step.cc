#include "model/cuda/step.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/carver.h"

namespace sinkstream {

namespace {

constexpr int64_t kAlignment = 256;
constexpr int32_t kNoToken = std::numeric_limits<int32_t>::max();  // in no table: a row of zeros

}  // namespace

StepBlock::StepBlock(std::byte* base, const StepShape& shape) : base(base) {
  const int64_t angles = shape.rows * shape.pairs;
  Carver<kAlignment> carver(base);
  ids = carver.take<int32_t>(shape.rows);
  tokens = carver.take<cuda::TokenRow>(shape.rows);
  index_cos = carver.take<float>(angles);
  index_sin = carver.take<float>(angles);
  rank_cos = carver.take<float>(angles);
  rank_sin = carver.take<float>(angles);
  sequences = carver.take<cuda::SequencePages>(shape.sequences);
  page_ids = carver.take<int32_t>(shape.page_ids);
  sample_rows = carver.take<cuda::TokenRow>(shape.samples);
  sampling = carver.take<cuda::SamplingRow>(shape.samples);
  bias = carver.take<TokenBias>(shape.bias);
  bytes = carver.used();
}

void StepMemory::reserve(int64_t bytes) {
  if (bytes <= bytes_) return;
  cuda::check(runtime_, runtime_.synchronize(stream_), "waiting for a step");
  cuda::MemoryBlock first = cuda::allocate_pinned(runtime_, bytes, "a step's rows");
  cuda::MemoryBlock second = cuda::allocate_pinned(runtime_, bytes, "a step's rows");
  device_ = cuda::allocate_device(runtime_, bytes, "a step's rows");
  host_[0] = std::move(first);
  host_[1] = std::move(second);
  bytes_ = bytes;
}

void StepMemory::release() {
  for (cuda::MemoryBlock& block : host_) block.reset();
  device_.reset();
  bytes_ = 0;
}

int64_t count_page_ids(const ForwardPlan& plan) {
  int64_t count = 0;
  for (const ForwardPlan::Piece& piece : plan.pieces) count += std::ssize(piece.cache->page_ids());
  return count;
}

cuda::SequencePages sequence_pages(const SequenceCache& cache, int64_t offset) {
  return {.pool = cache.memory().data(),
          .offset = offset,
          .sinks = static_cast<int32_t>(cache.window().sinks),
          .sink_pages = static_cast<int32_t>(cache.sink_page_count()),
          .window_pages = static_cast<int32_t>(cache.window_page_count())};
}

void fill_rows(const StepBlock& host, const ForwardPlan& plan, const Angles& angles,
               std::byte* scratch) {
  const int64_t rows = plan.rows();
  std::copy(plan.ids.begin(), plan.ids.end(), host.ids);
  angles.fill(plan.index.data(), rows, host.index_cos, host.index_sin);
  angles.fill(plan.rank.data(), rows, host.rank_cos, host.rank_sin);
  int64_t page_id = 0;
  for (int64_t i = 0; i < std::ssize(plan.pieces); ++i) {
    const ForwardPlan::Piece& piece = plan.pieces[i];
    cuda::SequencePages pages = sequence_pages(*piece.cache, page_id);
    if (piece.scratch_pages > 0) {
      pages.scratch_block = piece.scratch_block;
      pages.scratch = scratch + piece.scratch_page * piece.cache->shape().bytes();
    }
    host.sequences[i] = pages;
    for (int64_t row = piece.row; row < piece.row + piece.count; ++row) {
      host.tokens[row] = {plan.index[row], plan.first[row], plan.rank[row],
                          static_cast<int32_t>(i)};
    }
    const std::span<const int32_t> ids = piece.cache->page_ids();
    std::copy(ids.begin(), ids.end(), host.page_ids + page_id);
    page_id += std::ssize(ids);
  }
}

void fill_idle(const StepBlock& host, int64_t first, int64_t end) {
  std::fill(host.ids + first, host.ids + end, kNoToken);
  std::fill(host.tokens + first, host.tokens + end, cuda::TokenRow{});
  std::fill(host.sample_rows + first, host.sample_rows + end, cuda::TokenRow{});
}

}  // namespace sinkstream
