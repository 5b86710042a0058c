#include "cache/device_pages.h"

#include <utility>

#include "kernels/cuda/gpu.h"

namespace sinkstream {

void DevicePages::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  cuda::check(runtime_, runtime_.copy(to, from, bytes, stream_), "copying a page");
}

void DevicePages::fill(std::byte* at, uint8_t value, int64_t bytes) {
  cuda::check(runtime_, runtime_.fill(at, value, bytes, stream_), "filling a page");
}

void DevicePages::read(std::byte* to_host, const std::byte* from, int64_t bytes) {
  cuda::check(runtime_, runtime_.copy(to_host, from, bytes, stream_), "reading a page");
  cuda::check(runtime_, runtime_.synchronize(stream_), "reading a page");
}

void DevicePages::write(std::byte* to, const std::byte* from_host, int64_t bytes) {
  cuda::check(runtime_, runtime_.copy(to, from_host, bytes, stream_), "writing a page");
  cuda::check(runtime_, runtime_.synchronize(stream_), "writing a page");
}

void DevicePages::release() {
  if (!block_.memory) return;
  if (spare_ != nullptr) {
    spare_->keep(std::exchange(block_, {}));
    return;
  }
  runtime_.synchronize(stream_);  // work in flight uses the pages
  block_ = {};
}

}  // namespace sinkstream
