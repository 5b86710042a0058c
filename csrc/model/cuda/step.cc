#include "model/cuda/step.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/carver.h"
#include "kernels/cuda/attention/seen_pages.h"
#include "kernels/cuda/gpu.h"

namespace sinkstream {

namespace {

constexpr int64_t kAlignment = 256;
constexpr int32_t kNoToken = std::numeric_limits<int32_t>::max();  // in no table: a row of zeros

}  // namespace

StepBlock::StepBlock(std::byte* base, const StepShape& shape) : base(base), shape_(shape) {
  Carver<kAlignment> carver(base);
  ids = carver.take<int32_t>(shape.rows);
  tokens_ = carver.take<cuda::TokenRow>(shape.groups * shape.rows);
  angles_ = carver.take<float>(shape.rows * shape.views->floats_per_row());
  sequences_ = carver.take<cuda::SequencePages>(shape.groups * shape.sequences);
  page_begins_ = carver.take<int32_t>(shape.groups * (shape.rows + 1));
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

StepShape shape_of(const ForwardPlan& plan, const LayerViews& views) {
  StepShape shape = {.groups = std::ssize(plan.groups), .rows = plan.rows(), .views = &views};
  for (const ForwardPlan::Group& group : plan.groups) {
    shape.sequences = std::max<int64_t>(shape.sequences, std::ssize(group.pieces));
    for (const ForwardPlan::Piece& piece : group.pieces) shape.page_ids += piece.pages->pages();
  }
  return shape;
}

cuda::SequencePages sequence_pages(const GroupPages& group, int64_t offset) {
  return {.pool = group.pool->memory().data(),
          .offset = offset,
          .sinks = static_cast<int32_t>(group.window.sinks),
          .sink_pages = static_cast<int32_t>(group.sink_page_count),
          .window_pages = static_cast<int32_t>(group.window_page_count)};
}

void fill_rows(const StepBlock& host, const ForwardPlan& plan, std::byte* scratch) {
  const int64_t rows = plan.rows();
  std::copy(plan.ids.begin(), plan.ids.end(), host.ids);
  for (const LayerViews::Rope& rope : host.views().ropes()) {
    const StepBlock::AngleRows angles = host.index_angles(rope);
    rope.angles.fill(plan.index.data(), rows, angles.cos, angles.sin);
  }
  for (const LayerViews::View& view : host.views().views()) {
    const StepBlock::AngleRows angles = host.rank_angles(view);
    const std::vector<int64_t>& rank = plan.groups[static_cast<size_t>(view.group)].rank;
    host.views().rope_of(view).angles.fill(rank.data(), rows, angles.cos, angles.sin);
  }
  int64_t page_id = 0;
  for (int64_t g = 0; g < std::ssize(plan.groups); ++g) {
    const ForwardPlan::Group& group = plan.groups[static_cast<size_t>(g)];
    const StepBlock::Group block = host.group(g);
    block.page_begins[0] = 0;
    for (int64_t i = 0; i < std::ssize(group.pieces); ++i) {
      const ForwardPlan::Piece& piece = group.pieces[i];
      cuda::SequencePages pages = sequence_pages(*piece.pages, page_id);
      if (piece.scratch_pages > 0) {
        pages.scratch_block = piece.scratch_block;
        pages.scratch = scratch + piece.scratch_page * piece.pages->shape().bytes();
      }
      block.sequences[i] = pages;
      for (int64_t row = piece.row; row < piece.row + piece.count; ++row) {
        block.tokens[row] = {plan.index[row], group.first[row], group.rank[row],
                             static_cast<int32_t>(i)};
        const int32_t seen = cuda::seen_pages(pages, group.first[row], plan.index[row]).count();
        block.page_begins[row + 1] = block.page_begins[row] + (piece.count == 1 ? seen : 0);
      }
      const std::span<const int32_t> ids = piece.cache->page_ids(*piece.pages);
      std::copy(ids.begin(), ids.end(), host.page_ids + page_id);
      page_id += std::ssize(ids);
    }
  }
}

void fill_idle(const StepBlock& host, int64_t first, int64_t end) {
  std::fill(host.ids + first, host.ids + end, kNoToken);
  for (int64_t g = 0; g < host.groups(); ++g) {
    const StepBlock::Group group = host.group(g);
    std::fill(group.tokens + first, group.tokens + end, cuda::TokenRow{});
    if (first == 0) group.page_begins[0] = 0;
    std::fill(group.page_begins + first + 1, group.page_begins + end + 1, group.page_begins[first]);
  }
  std::fill(host.sample_rows + first, host.sample_rows + end, cuda::TokenRow{});
}

}  // namespace sinkstream
