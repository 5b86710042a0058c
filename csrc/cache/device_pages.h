// Pages in a GPU's memory. All operations are ordered on the CUDA stream that kernels run on.
#pragma once

#include "cache/page_memory.h"
#include "kernels/cuda/gpu.h"

namespace sinkstream {

class DevicePages : public PageMemory {
 public:
  // `runtime` and `stream` must outlive the pages. Throws CapacityError.
  DevicePages(int64_t bytes, const cuda::Runtime& runtime, cuda::Stream stream)
      : runtime_(runtime),
        stream_(stream),
        data_(cuda::allocate_device(runtime, bytes, "the cache")),
        bytes_(bytes) {}
  ~DevicePages() override { release(); }

  std::byte* data() const override { return data_.get(); }
  int64_t bytes() const override { return bytes_; }
  bool is_host_memory() const override { return false; }
  // These throw DeviceError. Host memory may be reused once `read` or `write` returns.
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void poison(std::byte* at, int64_t bytes) override;
  void read(std::byte* to_host, const std::byte* from, int64_t bytes) override;
  void write(std::byte* to, const std::byte* from_host, int64_t bytes) override;
  void release() override {
    runtime_.synchronize(stream_);  // work in flight uses the pages
    data_.reset();
  }

 private:
  const cuda::Runtime& runtime_;
  cuda::Stream stream_;
  cuda::MemoryBlock data_;
  int64_t bytes_;
};

}  // namespace sinkstream
