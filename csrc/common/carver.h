// Carves a block of memory into aligned pieces, in the order of the calls. With a null base, the
// same calls compute how large the block must be.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/divide_up.h"

namespace sinkstream {

template <int64_t kAlignment>
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  T* take(int64_t count) {
    // A number, not a pointer: the base may be null.
    const auto at = reinterpret_cast<uintptr_t>(base_) + static_cast<uintptr_t>(used_);
    used_ += divide_up(count * static_cast<int64_t>(sizeof(T)), kAlignment) * kAlignment;
    return reinterpret_cast<T*>(at);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace sinkstream
