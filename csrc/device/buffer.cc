#include "device/buffer.h"

#include <sys/mman.h>

#include <algorithm>

#include "common/check.h"
#include "common/divide_up.h"
#include "common/human_bytes.h"

namespace sinkstream {

namespace {
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kSmallPage = 4096;
}  // namespace

Buffer Buffer::map(int64_t bytes, const char* purpose) {
  SINKSTREAM_CHECK(bytes >= 0, "cannot allocate ", bytes, " bytes for ", purpose);
  Buffer buffer;
  if (bytes == 0) return buffer;
  void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) {
    throw CapacityError(cat("memory: the system cannot allocate ", human_bytes(bytes), " for ",
                            purpose, ". Choose a smaller window or fewer sequences."));
  }
  buffer.data_ = static_cast<std::byte*>(start);
  buffer.bytes_ = bytes;
  return buffer;
}

Buffer Buffer::reserve(int64_t bytes, const char* purpose) {
  Buffer buffer = map(bytes, purpose);
  if (bytes >= kHugePage) madvise(buffer.data_, bytes, MADV_HUGEPAGE);  // may fail
  return buffer;
}

Buffer Buffer::sparse(int64_t bytes, const char* purpose) {
  Buffer buffer = map(bytes, purpose);
  // A system may use huge pages without being asked to, or have none.
  if (bytes >= kHugePage) madvise(buffer.data_, bytes, MADV_NOHUGEPAGE);
  return buffer;
}

Buffer::Buffer(int64_t bytes, const char* purpose, ThreadPool* threads)
    : Buffer(reserve(bytes, purpose)) {
  make_resident(threads);
}

void Buffer::make_resident(ThreadPool* threads) {
  const auto touch = [this](int64_t piece, int) {
    const int64_t end = std::min((piece + 1) * kHugePage, bytes_);
    for (int64_t at = piece * kHugePage; at < end; at += kSmallPage) {
      *reinterpret_cast<volatile char*>(data_ + at) = 0;
    }
  };
  const int64_t pieces = divide_up(bytes_, kHugePage);
  if (threads != nullptr) {
    threads->run(pieces, touch);
  } else {
    for (int64_t piece = 0; piece < pieces; ++piece) touch(piece, 0);
  }
}

void Buffer::release() {
  if (data_ != nullptr) madvise(data_, bytes_, MADV_DONTNEED);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace sinkstream
