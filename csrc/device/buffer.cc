#include "device/buffer.h"

#include <sys/mman.h>

#include "common/check.h"

namespace sinkstream {

namespace {
constexpr int64_t kHugePage = int64_t{2} << 20;
}

Buffer::Buffer(int64_t bytes, const char* purpose) {
  SINKSTREAM_CHECK(bytes >= 0, "a buffer of ", bytes, " bytes for ", purpose);
  if (bytes == 0) return;
  void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) {
    throw CapacityError(cat("memory: the system does not give the ", bytes >> 20, " MiB for ",
                            purpose, ". Choose a smaller window or fewer sequences."));
  }
  data_ = static_cast<std::byte*>(start);
  bytes_ = bytes;
  if (bytes >= kHugePage) madvise(start, bytes, MADV_HUGEPAGE);  // a wish; small pages serve too
  for (int64_t at = 0; at < bytes; at += 4096) {
    *reinterpret_cast<volatile char*>(data_ + at) = 0;
  }
}

void Buffer::give_back() {
  if (data_ != nullptr) madvise(data_, bytes_, MADV_DONTNEED);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace sinkstream
