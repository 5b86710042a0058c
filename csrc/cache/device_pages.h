// Pages in a GPU's memory. Everything happens in the order of the stream that kernels run on.
#pragma once

#include "cache/page_memory.h"
#include "kernels/cuda/gpu.h"

namespace sinkstream {

class DevicePages : public PageMemory {
 public:
  // `runtime` and `stream` outlive the pages. Throws CapacityError.
  DevicePages(int64_t bytes, const cuda::Runtime& runtime, cuda::Stream stream)
      : runtime_(runtime),
        stream_(stream),
        data_(cuda::allocate_device(runtime, bytes, "the cache")),
        bytes_(bytes) {}
  ~DevicePages() override { release(); }

  std::byte* data() const override { return data_.get(); }
  int64_t bytes() const override { return bytes_; }
  bool is_hosts() const override { return false; }
  // These throw DeviceError. The host's memory may be used again when `read` and `write` return.
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void spoil(std::byte* at, int64_t bytes) override;
  void read(std::byte* to_host, const std::byte* from, int64_t bytes) override;
  void write(std::byte* to, const std::byte* from_host, int64_t bytes) override;
  void release() override {
    runtime_.synchronize(stream_);  // what is under way uses them
    data_.reset();
  }

 private:
  const cuda::Runtime& runtime_;
  cuda::Stream stream_;
  cuda::MemoryBlock data_;
  int64_t bytes_;
};

}  // namespace sinkstream
