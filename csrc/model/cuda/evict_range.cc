#include "model/cuda/evict_range.h"

#include <algorithm>

#include "common/carver.h"

namespace sinkstream {

namespace {

constexpr int64_t kAlignment = 256;

// Arguments of the kernel, at the same offsets in pinned and in device memory.
struct EvictBlock {
  EvictBlock(std::byte* base, int64_t older, int64_t pairs, int64_t ids) {
    Carver<kAlignment> carver(base);
    from = carver.take<cuda::SequenceSlot>(older);
    to = carver.take<cuda::SequenceSlot>(older);
    cos = carver.take<float>(pairs);
    sin = carver.take<float>(pairs);
    sequence = carver.take<cuda::SequencePages>(1);
    page_ids = carver.take<int32_t>(ids);
    bytes = carver.used();
  }

  cuda::SequenceSlot *from, *to;  // [older]
  float *cos, *sin;               // [pairs]
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
  const int64_t pairs = angles_.pairs();
  memory.reserve(EvictBlock(nullptr, cut.older, pairs, std::ssize(ids)).bytes);
  const EvictBlock host(memory.host(0), cut.older, pairs, std::ssize(ids));
  const EvictBlock device(memory.device(), cut.older, pairs, std::ssize(ids));
  const auto slot = [&](int64_t index) {
    return cuda::SequenceSlot{static_cast<int32_t>(pages.page_ordinal(index)),
                              static_cast<int32_t>(pages.row(index))};
  };
  for (int64_t i = 0; i < cut.older; ++i) {  // newest first, so that none is overwritten
    host.from[i] = slot(cut.first + cut.older - 1 - i);
    host.to[i] = slot(cut.first + cut.older - 1 - i + cut.distance);
  }
  angles_.fill(&cut.distance, 1, host.cos, host.sin);
  *host.sequence = sequence_pages(cache, pages, 0);
  std::copy(ids.begin(), ids.end(), host.page_ids);
  check(plugin_.runtime.copy(memory.device(), memory.host(0), host.bytes, stream_),
        "copying an eviction's slots");
  cuda::EvictArgs args;
  args.pages = {device.page_ids, device.sequence, 0, cache.shape()};
  args.layers = static_cast<int32_t>(pages.layers);
  args.from = device.from;
  args.to = device.to;
  args.rows = static_cast<int32_t>(cut.older);
  args.rotation = {device.cos, device.sin, 2 * pairs, pairing_};
  check(plugin_.ops.evict(args, stream_), "evict");
  check(plugin_.runtime.synchronize(stream_), "an eviction");
}

void CudaEvictor::check(cuda::Status status, const char* what) const {
  cuda::check(plugin_.runtime, status, what);
}

}  // namespace sinkstream
