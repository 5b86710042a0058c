#include "device/shared_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "common/errors.h"
#include "common/human_bytes.h"

namespace sinkstream {

namespace {

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // of Linux 5.14
#endif

constexpr int64_t kPage = 4096;
// Of a file that takes the place of memory: other threads that read it meanwhile wait for a
// millisecond or two.
constexpr int64_t kPiece = 8 * SharedBuffer::kAlignment;

}  // namespace

SharedBuffer SharedBuffer::map_file(int descriptor, int64_t offset, int64_t bytes,
                                    const char* purpose) {
  SharedBuffer buffer(bytes, purpose);
  while (buffer.bytes_from_file() < bytes) {
    if (buffer.map_piece(descriptor, offset)) continue;
    throw CapacityError(
        cat("memory: the system cannot map ", human_bytes(bytes), " of a file for ", purpose, "."));
  }
  return buffer;
}

bool SharedBuffer::map_piece(int descriptor, int64_t offset) {
  const int64_t begin = bytes_from_file(), count = std::min(kPiece, bytes() - begin);
  const int locked = is_locked_ ? MAP_LOCKED : 0;
  if (mmap(data() + begin, count, PROT_READ, MAP_SHARED | MAP_FIXED | locked, descriptor,
           offset + begin) == MAP_FAILED) {
    return false;
  }
  madvise(data() + begin, count, MADV_HUGEPAGE);  // may fail
  from_file_.store(begin + count, std::memory_order_relaxed);
  return true;
}

bool SharedBuffer::make_resident(int64_t begin, int64_t end) const {
  const int64_t first = begin / kPage * kPage;
  if (madvise(data() + first, end - first, MADV_POPULATE_READ) == 0) return true;
  if (errno != EINVAL) return false;
  for (int64_t at = first; at < end; at += kPage) {  // an older system
    static_cast<void>(*reinterpret_cast<const volatile char*>(data() + at));
  }
  return true;
}

int SharedBuffer::lock() {
  if (data() != nullptr && mlock(data(), bytes()) != 0) return errno;
  is_locked_ = true;
  return 0;
}

void SharedBuffer::release() {
  if (is_locked_) munlock(data(), bytes());  // what is locked cannot be returned
  is_locked_ = false;
  memory_.release();
}

}  // namespace sinkstream
