#pragma once

#include <cstdint>

namespace sinkstream {

// How many pieces of `size` hold `count`: the quotient, rounded up. A GPU's inner loops, whose
// counts have 32 bits, do without.
constexpr int64_t divide_up(int64_t count, int64_t size) { return (count + size - 1) / size; }

}  // namespace sinkstream
