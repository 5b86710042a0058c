// Powers of two in host and GPU code. nvcc compiles std::bit_ceil and std::bit_floor for a GPU
// without a warning, but they return 1 there: they call a builtin of the host's compiler.
#pragma once

#include <cstdint>

namespace sinkstream {

// The smallest power of two that is at least x.
constexpr int64_t power_of_two_above(int64_t x) {
  int64_t power = 1;
  while (power < x) power *= 2;
  return power;
}

// The largest power of two that is at most x, which is at least 1.
constexpr int64_t power_of_two_below(int64_t x) {
  int64_t power = 1;
  while (power <= x / 2) power *= 2;
  return power;
}

}  // namespace sinkstream
