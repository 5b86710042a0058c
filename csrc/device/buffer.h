// Owned memory for weights, pages and scratch, taken once and kept. Knows nothing of its contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/thread_pool.h"

namespace sinkstream {

// Zeroed, page-aligned host memory, backed by huge pages where the system gives them.
class Buffer {
 public:
  Buffer() = default;
  // Throws CapacityError, naming `purpose`, if the system does not give the memory. All of it is
  // resident when the constructor returns: what follows never faults and never grows. The system
  // clears memory while it gives it, and on `threads`, where there are some, does so faster.
  Buffer(int64_t bytes, const char* purpose, ThreadPool* threads = nullptr);
  // The same memory, but each page of it becomes resident when it is first written: for those who
  // write all of it at once.
  static Buffer reserve(int64_t bytes, const char* purpose);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  // Gives the memory back to the system and keeps the addresses: zeros are read there from now on.
  void release();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void make_resident(ThreadPool* threads);
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace sinkstream
