#include "device/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "common/check.h"
#include "common/divide_up.h"
#include "common/human_bytes.h"

namespace sinkstream {

namespace {

constexpr int64_t kHugePage = Buffer::kFileAlignment;
constexpr int64_t kSmallPage = 4096;
// Of a file that takes the place of memory: other threads that read it meanwhile wait for a
// millisecond or two.
constexpr int64_t kExchanged = 8 * kHugePage;

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // of Linux 5.14
#endif

// Huge pages are not asked for in vain: a system may have none.
void prefer_huge_pages(std::byte* start, int64_t bytes) {
  if (bytes >= kHugePage) madvise(start, bytes, MADV_HUGEPAGE);  // may fail
}

}  // namespace

Buffer Buffer::map(int64_t bytes, int protection, const char* purpose) {
  SINKSTREAM_CHECK(bytes >= 0, "cannot allocate ", bytes, " bytes for ", purpose);
  Buffer buffer;
  if (bytes == 0) return buffer;
  // Only addresses are spent on what is cut off again.
  const int64_t spare = bytes >= kHugePage ? kHugePage : 0;
  void* start = mmap(nullptr, bytes + spare, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) {
    throw CapacityError(cat("memory: the system cannot allocate ", human_bytes(bytes), " for ",
                            purpose, ". Choose a smaller window or fewer sequences."));
  }
  buffer.data_ = static_cast<std::byte*>(start);
  buffer.bytes_ = bytes;
  if (spare > 0) {
    const int64_t before = -reinterpret_cast<intptr_t>(start) & (kHugePage - 1);
    const int64_t used = divide_up(before + bytes, kSmallPage) * kSmallPage;
    buffer.data_ += before;
    if (before > 0) munmap(start, before);
    munmap(static_cast<std::byte*>(start) + used,
           divide_up(bytes + spare, kSmallPage) * kSmallPage - used);
  }
  return buffer;
}

Buffer Buffer::reserve(int64_t bytes, const char* purpose) {
  Buffer buffer = map(bytes, PROT_READ | PROT_WRITE, purpose);
  prefer_huge_pages(buffer.data_, bytes);
  return buffer;
}

Buffer Buffer::sparse(int64_t bytes, const char* purpose) {
  Buffer buffer = map(bytes, PROT_READ | PROT_WRITE, purpose);
  // A system may use huge pages without being asked to, or have none.
  if (bytes >= kHugePage) madvise(buffer.data_, bytes, MADV_NOHUGEPAGE);
  return buffer;
}

Buffer Buffer::map_file(int descriptor, int64_t offset, int64_t bytes, const char* purpose) {
  Buffer buffer = map(bytes, PROT_NONE, purpose);
  while (buffer.bytes_from_file() < bytes) {
    if (buffer.map_piece(descriptor, offset)) continue;
    throw CapacityError(cat("memory: the system cannot map ", human_bytes(bytes), " for ", purpose,
                            ", which are in a file."));
  }
  return buffer;
}

bool Buffer::map_piece(int descriptor, int64_t offset) {
  const int64_t begin = bytes_from_file();
  std::byte* const start = data_ + begin;
  const int64_t bytes = std::min(kExchanged, bytes_ - begin);
  const int locked = is_locked_ ? MAP_LOCKED : 0;
  if (mmap(start, bytes, PROT_READ, MAP_SHARED | MAP_FIXED | locked, descriptor, offset + begin) ==
      MAP_FAILED) {
    return false;
  }
  prefer_huge_pages(start, bytes);
  from_file_.store(begin + bytes, std::memory_order_relaxed);
  return true;
}

bool Buffer::make_resident(int64_t begin, int64_t end) const {
  const int64_t first = begin / kSmallPage * kSmallPage;
  if (madvise(data_ + first, end - first, MADV_POPULATE_READ) == 0) return true;
  if (errno != EINVAL) return false;
  for (int64_t at = first; at < end; at += kSmallPage) {  // an older system
    static_cast<void>(*reinterpret_cast<const volatile char*>(data_ + at));
  }
  return true;
}

int Buffer::lock() {
  if (data_ != nullptr && mlock(data_, bytes_) != 0) return errno;
  is_locked_ = true;
  return 0;
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
  if (data_ == nullptr) return;
  if (is_locked_) munlock(data_, bytes_);
  is_locked_ = false;
  madvise(data_, bytes_, MADV_DONTNEED);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace sinkstream
