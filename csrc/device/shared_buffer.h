// Memory that is written once and then only read: allocated, or mapped from a file, which also can
// take the place of allocated memory with the same bytes. Knows nothing about its contents.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "device/buffer.h"

namespace sinkstream {

class SharedBuffer {
 public:
  SharedBuffer() = default;
  // Each page becomes resident when it is first written, as with Buffer::reserve.
  SharedBuffer(int64_t bytes, const char* purpose) : memory_(Buffer::reserve(bytes, purpose)) {}
  // Bytes [offset, offset + bytes) of a file, which may be closed afterwards: read-only, and shared
  // with all processes that map them. `offset`: a multiple of kAlignment. Each page becomes
  // resident when it is first read. The file must not become shorter. Throws CapacityError.
  static SharedBuffer map_file(int descriptor, int64_t offset, int64_t bytes, const char* purpose);
  SharedBuffer(SharedBuffer&& other) noexcept { swap(other); }
  SharedBuffer& operator=(SharedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }

  // With it, huge pages of a file fit.
  static constexpr int64_t kAlignment = int64_t{2} << 20;

  std::byte* data() const { return memory_.data(); }
  int64_t bytes() const { return memory_.bytes(); }
  // How many bytes are mapped from a file, from the first on.
  int64_t bytes_from_file() const { return from_file_.load(std::memory_order_relaxed); }

  // Replaces the next piece of the memory, which must hold the same bytes, by that of a file, as in
  // map_file. There is no moment at which other threads could not read it. Returns false if the
  // system refuses. One caller at a time, until bytes_from_file() is bytes().
  bool map_piece(int descriptor, int64_t offset);
  // Makes the bytes [begin, end) resident. Returns false if they are a file's that cannot be read.
  bool make_resident(int64_t begin, int64_t end) const;
  // Keeps all of it resident from now on, also what a file takes the place of later. Returns 0, or
  // the system's error.
  int lock();

  // Returns the memory to the system but keeps the addresses. It must not be used afterwards.
  void release();

 private:
  void swap(SharedBuffer& other) {
    std::swap(memory_, other.memory_);
    from_file_ = other.from_file_.exchange(from_file_);
    std::swap(is_locked_, other.is_locked_);
  }

  Buffer memory_;                      // its addresses, whatever is mapped at them
  std::atomic<int64_t> from_file_{0};  // read by other threads than that of map_piece
  bool is_locked_ = false;
};

}  // namespace sinkstream
