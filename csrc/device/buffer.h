// Owned memory for weights, pages and scratch, allocated once. Knows nothing about its contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/thread_pool.h"

namespace sinkstream {

// Zeroed, page-aligned host memory, unless it is sparse backed by huge pages where available.
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
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  // Returns the memory to the system but keeps the addresses, which read as zeros from then on.
  void release();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  static Buffer map(int64_t bytes, const char* purpose);
  void make_resident(ThreadPool* threads);
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace sinkstream
