#include "kernels/cuda/memory.h"

#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/human_bytes.h"

namespace sinkstream::cuda {

namespace {

constexpr size_t kMostBlocks = 16;  // that one SpareMemory keeps

// All spare memory of the process: what one model keeps, another may need.
class SpareMemories {
 public:
  void add(SpareMemory* spare) {
    const std::lock_guard lock(mutex_);
    all_.push_back(spare);
  }
  void remove(SpareMemory* spare) {
    const std::lock_guard lock(mutex_);
    std::erase(all_, spare);
  }
  bool free_kept() {
    const std::lock_guard lock(mutex_);
    bool freed = false;
    for (SpareMemory* spare : all_) freed = spare->free_kept() || freed;
    return freed;
  }

 private:
  std::mutex mutex_;
  std::vector<SpareMemory*> all_;
};

// Never destroyed: at exit, a model that is still loaded removes itself.
SpareMemories& spare_memories() {
  static auto* const all = new SpareMemories;
  return *all;
}

}  // namespace

MemoryBlock allocate_device(const Runtime& runtime, int64_t bytes, const char* purpose) {
  std::byte* memory = nullptr;
  if (runtime.new_memory(bytes, &memory) == kSuccess ||
      (spare_memories().free_kept() && runtime.new_memory(bytes, &memory) == kSuccess)) {
    return MemoryBlock(memory, runtime.free_memory);
  }
  GpuFacts facts;
  const bool is_known = runtime.describe(0, &facts) == kSuccess;
  throw CapacityError(
      cat("memory: the GPU cannot allocate ", human_bytes(bytes), " for ", purpose,
          is_known ? cat("; ", human_bytes(facts.free_bytes), " of ",
                         human_bytes(facts.total_bytes), " is free")
                   : std::string(),
          ". Choose a smaller window or fewer sequences, or free other GPU "
          "memory. torch.cuda.empty_cache() frees what PyTorch keeps in this process."));
}

MemoryBlock allocate_pinned(const Runtime& runtime, int64_t bytes, const char* purpose) {
  std::byte* memory = nullptr;
  const Status status = runtime.new_pinned(bytes, &memory);
  if (status == kSuccess) return MemoryBlock(memory, runtime.free_pinned);
  throw CapacityError(cat("memory: the driver cannot allocate ", human_bytes(bytes),
                          " of pinned memory for ", purpose, ": ", runtime.message(status), "."));
}

SpareMemory::SpareMemory(const Runtime& runtime, Stream stream, int64_t most_bytes)
    : runtime_(runtime), stream_(stream), most_bytes_(most_bytes) {
  kept_.reserve(kMostBlocks);
  spare_memories().add(this);
}

SpareMemory::~SpareMemory() {
  spare_memories().remove(this);
  free_kept();
}

DeviceBlock SpareMemory::take(int64_t bytes, const char* purpose) {
  {
    const std::lock_guard lock(mutex_);
    auto best = kept_.end();
    for (auto block = kept_.begin(); block != kept_.end(); ++block) {
      const bool is_better = best == kept_.end() || block->bytes < best->bytes;
      if (block->bytes >= bytes && is_better) best = block;
    }
    if (best != kept_.end() && best->bytes / 2 <= bytes) return pop(best);
  }
  return {allocate_device(runtime_, bytes, purpose), bytes};
}

void SpareMemory::keep(DeviceBlock block) noexcept {
  while (block.memory) {
    DeviceBlock too_much;
    {
      const std::lock_guard lock(mutex_);
      if (kept_.size() < kMostBlocks && block.bytes <= most_bytes_ - kept_bytes_) {
        kept_bytes_ += block.bytes;
        kept_.push_back(std::move(block));
        return;
      }
      too_much = block.bytes > most_bytes_ ? std::exchange(block, {}) : pop(kept_.begin());
    }
    free(std::move(too_much));
  }
}

int64_t SpareMemory::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

bool SpareMemory::free_kept() {
  for (bool freed = false;; freed = true) {
    DeviceBlock oldest;
    {
      const std::lock_guard lock(mutex_);
      if (kept_.empty()) return freed;
      oldest = pop(kept_.begin());
    }
    free(std::move(oldest));
  }
}

void SpareMemory::close() {
  {
    const std::lock_guard lock(mutex_);
    most_bytes_ = 0;
  }
  free_kept();
}

// With `mutex_` held.
DeviceBlock SpareMemory::pop(std::vector<DeviceBlock>::iterator block) {
  DeviceBlock popped = std::move(*block);
  kept_.erase(block);
  kept_bytes_ -= popped.bytes;
  return popped;
}

// Without `mutex_`, because it waits.
void SpareMemory::free(DeviceBlock block) {
  runtime_.synchronize(stream_);  // even if it failed
  block = {};
}

}  // namespace sinkstream::cuda
