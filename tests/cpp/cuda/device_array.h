// Memory that a test passes to a kernel as device memory: exactly as long as the contract says, on
// the heap, where a sanitizer sees reads past the end, and NaN until written.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace sinkstream::cuda {

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : count_(count) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, bytes()) != 0) throw std::bad_alloc();
    memory_.reset(static_cast<T*>(memory));
    poison();
  }
  explicit DeviceArray(const std::vector<T>& numbers)
      : DeviceArray(static_cast<int64_t>(numbers.size())) {
    if (count_ > 0) std::memcpy(get(), numbers.data(), bytes());
  }

  void poison() { std::memset(static_cast<void*>(get()), 0xFF, bytes()); }

  T* get() { return memory_.get(); }
  const T* get() const { return memory_.get(); }
  T& operator[](int64_t i) { return memory_.get()[i]; }
  const T& operator[](int64_t i) const { return memory_.get()[i]; }
  int64_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

  // Whether `count` numbers from `first` on are as poison() left them.
  bool is_untouched(int64_t first, int64_t count) const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(get() + first);
    for (size_t i = 0; i < count * sizeof(T); ++i) {
      if (bytes[i] != 0xFF) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };

  int64_t count_;
  std::unique_ptr<T, Free> memory_;
};

}  // namespace sinkstream::cuda
