// Pages in a GPU's memory. All operations are ordered on the CUDA stream that kernels run on.
#pragma once

#include "cache/page_memory.h"
#include "kernels/cuda/memory.h"

namespace sinkstream {

class DevicePages : public PageMemory {
 public:
  // `runtime` and `stream` must outlive the pages. Throws CapacityError.
  DevicePages(int64_t bytes, const cuda::Runtime& runtime, cuda::Stream stream)
      : runtime_(runtime),
        stream_(stream),
        block_{cuda::allocate_device(runtime, bytes, "the cache"), bytes} {}
  // In memory that `spare` lends, which may be more than `bytes`; `spare` must outlive the pages.
  DevicePages(int64_t bytes, const cuda::Runtime& runtime, cuda::Stream stream,
              cuda::SpareMemory* spare)
      : runtime_(runtime), stream_(stream), spare_(spare), block_(spare->take(bytes, "a cache")) {}
  ~DevicePages() override { release(); }

  std::byte* data() const override { return block_.memory.get(); }
  int64_t bytes() const override { return block_.bytes; }
  bool is_host_memory() const override { return false; }
  // These throw DeviceError. Host memory may be reused once `read` or `write` returns.
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void fill(std::byte* at, uint8_t value, int64_t bytes) override;
  void read(std::byte* to_host, const std::byte* from, int64_t bytes) override;
  void write(std::byte* to, const std::byte* from_host, int64_t bytes) override;
  void release() override;

 private:
  const cuda::Runtime& runtime_;
  cuda::Stream stream_;
  cuda::SpareMemory* spare_ = nullptr;  // null: the memory is the pages' own
  cuda::DeviceBlock block_;
};

}  // namespace sinkstream
