// A buffer for a kernel's output: NaN before the kernel runs, canaries on both sides, and any
// misalignment.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "common/dtype.h"

namespace sinkstream {

class Guarded {
 public:
  // `misalignment`: floats past a 64-byte border, in [0, 16).
  explicit Guarded(int64_t count, int64_t misalignment = 0)
      : count_(count), memory_(count + 4 * kGuard, kCanary) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data() + kGuard);
    first_ = kGuard + (64 - address % 64) % 64 / 4 + misalignment;
    for (int64_t i = 0; i < count; ++i) (*this)[i] = std::numeric_limits<float>::quiet_NaN();
  }

  float* get() { return reinterpret_cast<float*>(memory_.data() + first_); }
  float& operator[](int64_t i) { return get()[i]; }
  int64_t count() const { return count_; }

  // Whether nothing outside the buffer was written.
  bool is_intact() const {
    for (int64_t i = 0; i < static_cast<int64_t>(memory_.size()); ++i) {
      if ((i < first_ || i >= first_ + count_) && memory_[i] != kCanary) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 32;
  static constexpr float kCanary = 12345.678f;

  int64_t count_;
  int64_t first_;
  std::vector<float> memory_;
};

// Whether two arrays of floats have the same bits, NaN included.
inline bool same_bits(const float* a, const float* b, int64_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(float)) == 0;
}

}  // namespace sinkstream
