#include "model/cuda/evict_range.h"

#include <algorithm>

#include "common/carver.h"
#include "kernels/cuda/gpu.h"

namespace sinkstream {

namespace {

constexpr int64_t kAlignment = 256;

// Arguments of the kernel, at the same offsets in pinned and in device memory.
struct EvictBlock {
  EvictBlock(std::byte* base, int64_t older, int64_t angle_floats, int64_t ids) {
    Carver<kAlignment> carver(base);
    from = carver.take<cuda::SequenceSlot>(older);
    to = carver.take<cuda::SequenceSlot>(older);
    angles = carver.take<float>(angle_floats);
    sequence = carver.take<cuda::SequencePages>(1);
    page_ids = carver.take<int32_t>(ids);
    bytes = carver.used();
  }

  cuda::SequenceSlot *from, *to;  // [older]
  float* angles;                  // of each rope its cosines, then its sines
  cuda::SequencePages* sequence;
  int32_t* page_ids;
  int64_t bytes;
};

}  // namespace

void CudaEvictor::evict_range(SequenceCache* cache, int64_t begin, int64_t end,
                              StepMemory& memory) const {
  const std::vector<Cut> cuts = plan_cuts(*cache, begin, end);
  for (int64_t group = 0; group < cache->group_count(); ++group) {
    const Cut& cut = cuts[static_cast<size_t>(group)];
    if (cut.older > 0) move_keys(*cache, group, cut, memory);
    cache->cut_group(group, cut.begin);
  }
}

void CudaEvictor::move_keys(const SequenceCache& cache, int64_t group, const Cut& cut,
                            StepMemory& memory) const {
  const GroupPages& pages = cache.group(group);
  const std::span<const int32_t> ids = cache.page_ids(pages);
  int64_t angle_floats = 0;
  for (const LayerViews::Rope& rope : views_.ropes()) angle_floats += 2 * rope.pairs();
  memory.reserve(EvictBlock(nullptr, cut.older, angle_floats, std::ssize(ids)).bytes);
  const EvictBlock host(memory.host(0), cut.older, angle_floats, std::ssize(ids));
  const EvictBlock device(memory.device(), cut.older, angle_floats, std::ssize(ids));
  const auto slot = [&](int64_t index) {
    return cuda::SequenceSlot{static_cast<int32_t>(pages.page_ordinal(index)),
                              static_cast<int32_t>(pages.row(index))};
  };
  for (int64_t i = 0; i < cut.older; ++i) {  // newest first, so that none is overwritten
    host.from[i] = slot(cut.first + cut.older - 1 - i);
    host.to[i] = slot(cut.first + cut.older - 1 - i + cut.distance);
  }
  for (const LayerViews::Rope& rope : views_.ropes()) {
    float* const cos = host.angles + rope.before;
    rope.shift_angles.fill(&cut.distance, 1, cos, cos + rope.pairs());
  }
  *host.sequence = sequence_pages(pages, 0);
  std::copy(ids.begin(), ids.end(), host.page_ids);
  check(plugin_.runtime.copy(memory.device(), memory.host(0), host.bytes, stream_),
        "copying an eviction's slots");
  // Consecutive layers with one rope are one launch.
  const std::vector<int64_t>& layers = layers_.groups()[static_cast<size_t>(group)].layers;
  for (int64_t first = 0, end; first < std::ssize(layers); first = end) {
    const LayerViews::Rope& rope = views_.rope_of(layers[static_cast<size_t>(first)]);
    end = first + 1;
    while (end < std::ssize(layers) && &views_.rope_of(layers[static_cast<size_t>(end)]) == &rope) {
      ++end;
    }
    const float* const cos = device.angles + rope.before;
    cuda::EvictArgs args;
    args.pages = {device.page_ids, device.sequence, static_cast<int32_t>(first), pages.shape()};
    args.layers = static_cast<int32_t>(end - first);
    args.from = device.from;
    args.to = device.to;
    args.rows = static_cast<int32_t>(cut.older);
    args.rotation = {cos, cos + rope.pairs(), rope.spec.rotary_dim(), rope.spec.pairing};
    check(plugin_.ops.evict(args, stream_), "evict");
  }
  check(plugin_.runtime.synchronize(stream_), "an eviction");
}

void CudaEvictor::check(cuda::Status status, const char* what) const {
  cuda::check(plugin_.runtime, status, what);
}

}  // namespace sinkstream
