#include "kernels/cuda/memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/human_bytes.h"

namespace sinkstream::cuda {

namespace {

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
  spare_memories().add(this);
}

SpareMemory::~SpareMemory() {
  spare_memories().remove(this);
  free_kept();
}

DeviceBlock SpareMemory::take(int64_t bytes, const char* purpose) {
  {
    const std::lock_guard lock(mutex_);
    DeviceBlock* best = nullptr;
    for (DeviceBlock& block : kept_) {
      if (block.bytes >= bytes && (best == nullptr || block.bytes < best->bytes)) best = &block;
    }
    if (best != nullptr) {
      kept_bytes_ -= best->bytes;
      return std::exchange(*best, {});
    }
  }
  free_kept();
  return {allocate_device(runtime_, bytes, purpose), bytes};
}

void SpareMemory::keep(DeviceBlock block) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto empty = std::find_if(kept_.begin(), kept_.end(),
                                    [](const DeviceBlock& kept) { return !kept.memory; });
    if (empty != kept_.end() && block.bytes <= most_bytes_ - kept_bytes_) {
      kept_bytes_ += block.bytes;
      *empty = std::move(block);
      return;
    }
  }
  runtime_.synchronize(stream_);  // even if it failed; then `block` is freed
}

int64_t SpareMemory::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

bool SpareMemory::free_kept() {
  decltype(kept_) blocks;
  {
    const std::lock_guard lock(mutex_);
    if (kept_bytes_ == 0) return false;
    blocks = std::exchange(kept_, {});
    kept_bytes_ = 0;
  }
  runtime_.synchronize(stream_);  // even if it failed
  return true;
}

void SpareMemory::close() {
  {
    const std::lock_guard lock(mutex_);
    most_bytes_ = 0;
  }
  free_kept();
}

}  // namespace sinkstream::cuda
