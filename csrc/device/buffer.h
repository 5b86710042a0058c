// Owned memory for weights, pages and scratch: allocated once, or mapped from a file. Knows nothing
// about its contents.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/thread_pool.h"

namespace sinkstream {

// Zeroed, page-aligned host memory, unless it is sparse backed by huge pages where available.
// Begins at a huge page if it has the bytes of one.
class Buffer {
 public:
  Buffer() = default;
  // Throws CapacityError, naming `purpose`, if the system refuses the memory. All of it is resident
  // when the constructor returns: later accesses neither fault nor grow the process. The system
  // zeroes memory as it becomes resident; `threads`, if not null, speed that up.
  Buffer(int64_t bytes, const char* purpose, ThreadPool* threads = nullptr);
  // The same, but each page becomes resident when it is first written: for callers that write all
  // of it right away.
  static Buffer reserve(int64_t bytes, const char* purpose);
  // The same in small pages: for memory of which most uses touch only a part.
  static Buffer sparse(int64_t bytes, const char* purpose);
  // Bytes [offset, offset + bytes) of a file, which may be closed afterwards: read-only, and shared
  // with all processes that map them. `offset`: a multiple of kFileAlignment. Pages become resident
  // when they are read. The file must not become shorter. Throws CapacityError.
  static Buffer map_file(int descriptor, int64_t offset, int64_t bytes, const char* purpose);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  // With it, huge pages of a file fit.
  static constexpr int64_t kFileAlignment = int64_t{2} << 20;

  // Replaces the next piece of the memory, which must hold the same bytes, by that of a file, as in
  // map_file. There is no moment at which other threads could not read it. Returns false if the
  // system refuses. One caller at a time, until bytes_from_file() is bytes().
  bool map_piece(int descriptor, int64_t offset);
  // How many bytes are mapped from a file, from the first on.
  int64_t bytes_from_file() const { return from_file_.load(std::memory_order_relaxed); }

  // Makes the pages [begin, end) resident. Returns false if the file's cannot be read.
  bool make_resident(int64_t begin, int64_t end) const;
  // Keeps all of it resident from now on, also what a file takes the place of later. Returns 0, or
  // the system's error.
  int lock();

  // Returns the memory to the system but keeps the addresses. From then on, they read as zeros, or
  // as the file.
  void release();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  static Buffer map(int64_t bytes, int protection, const char* purpose);
  void make_resident(ThreadPool* threads);
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    from_file_ = other.from_file_.exchange(from_file_);
    std::swap(is_locked_, other.is_locked_);
  }

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  std::atomic<int64_t> from_file_{0};  // read by other threads than that of map_piece
  bool is_locked_ = false;
};

}  // namespace sinkstream
