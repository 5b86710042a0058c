#pragma once

#include <algorithm>
#include <cmath>

namespace sinkstream {

// ln(1 + e^x), without overflow.
inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace sinkstream
