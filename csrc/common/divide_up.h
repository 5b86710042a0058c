#pragma once

#include <cstdint>

namespace sinkstream {

// count / size, rounded up. Inner loops of GPU kernels count in 32 bits and do not use it.
constexpr int64_t divide_up(int64_t count, int64_t size) { return (count + size - 1) / size; }

}  // namespace sinkstream
