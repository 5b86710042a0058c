// Memory of the GPU, and pinned memory of the host: allocated, or kept from one use to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace sinkstream::cuda {

// Freed with its last owner.
using MemoryBlock = std::shared_ptr<std::byte>;

// Throws CapacityError with the size, the purpose and the free memory. If memory is short, spare
// memory is freed first.
MemoryBlock allocate_device(const Runtime& runtime, int64_t bytes, const char* purpose);

// Pinned host memory, which the GPU reads and writes directly. Throws CapacityError.
MemoryBlock allocate_pinned(const Runtime& runtime, int64_t bytes, const char* purpose);

// Device memory of a known size. Empty: no memory.
struct DeviceBlock {
  MemoryBlock memory;
  int64_t bytes = 0;
};

// Device memory that was used and is kept for the next use, because the driver stops all work on
// the GPU to allocate and to free: streams would stall. All uses are ordered on one CUDA stream, so
// that a block may be used again while the GPU still works on it. Thread-safe.
class SpareMemory {
 public:
  // Keeps at most `most_bytes`. `runtime` and `stream` must outlive it.
  SpareMemory(const Runtime& runtime, Stream stream, int64_t most_bytes);
  ~SpareMemory();
  SpareMemory(const SpareMemory&) = delete;
  SpareMemory& operator=(const SpareMemory&) = delete;

  // The smallest kept block of at least `bytes` bytes, with whatever its last user left in it. If
  // there is none, or only one of more than twice the size, allocates one. Throws CapacityError.
  DeviceBlock take(int64_t bytes, const char* purpose);
  // Keeps a block. What would be too much is freed, once the stream's work is done: the block
  // itself if it alone is, otherwise those that have been kept the longest.
  void keep(DeviceBlock block) noexcept;
  int64_t kept_bytes() const;

  // Frees what is kept, once the stream's work is done. Returns whether that was anything.
  bool free_kept();
  // The same, and keeps nothing from now on.
  void close();

 private:
  DeviceBlock pop(std::vector<DeviceBlock>::iterator block);
  void free(DeviceBlock block);

  const Runtime& runtime_;
  Stream stream_;

  mutable std::mutex mutex_;  // guards the members below
  int64_t most_bytes_;
  int64_t kept_bytes_ = 0;
  std::vector<DeviceBlock> kept_;  // the oldest first; never grows beyond its first capacity
};

}  // namespace sinkstream::cuda
