// Copies an image to device memory piece by piece: the host writes one pinned buffer while the GPU
// copies the other. Knows nothing about what the image holds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/memory.h"

namespace sinkstream {

class Upload {
 public:
  // To device memory from `begin` on, through buffers of `buffer_bytes` bytes. Everything must
  // outlive it. Throws CapacityError, DeviceError.
  Upload(std::byte* begin, int64_t buffer_bytes, const cuda::Runtime& runtime, cuda::Stream stream);
  // Waits for copies in flight, which read the buffers. What has not been sent is dropped.
  ~Upload();
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  // How many bytes that go to `to` the current buffer has room for. If that is less than
  // `least`, sends the buffer first, and waits if the GPU still copies the other one. A buffer has
  // room for `least` bytes and what lies between the last piece and `to`.
  int64_t room(const std::byte* to, int64_t least);
  // Where to write the `bytes` bytes that go to `to`, until the next call. Addresses ascend; what
  // lies between two pieces becomes zeros.
  std::byte* write(std::byte* to, int64_t bytes);
  // Sends the rest, and waits until the GPU has everything.
  void finish();

 private:
  void send();

  const cuda::Runtime& runtime_;
  cuda::Stream stream_;
  int64_t buffer_bytes_;
  cuda::MemoryBlock buffers_[2];  // pinned
  cuda::UniqueEvent copied_[2];   // of each buffer, once it has been sent
  int64_t sent_ = 0;              // buffers so far; the current one is sent_ % 2
  std::byte* begin_;              // the current buffer goes to [begin_, end_) so far
  std::byte* end_;
};

}  // namespace sinkstream
