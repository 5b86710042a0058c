// How far a kernel may be from its reference: one table for all kernel tests, relative to the scale
// of the output. The type is the narrowest that a table rounds to and the reference does not. Each
// tolerance is less than twice the largest error that the tests find (asserted by
// tightness_test.cc).
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/dtype.h"

namespace sinkstream {

constexpr double tolerance_of(DType rounded_to) {
  switch (rounded_to) {
    case DType::kFloat32: return 5e-6;
    case DType::kFloat16: return 4e-3;
    case DType::kBFloat16: return 4e-2;
    case DType::kInt8: return 4e-2;
  }
  return 0;
}

// The largest |actual − expected| over `count` numbers, in units of `scale` (above 0).
// Infinity if any number is NaN or infinite, on either side: no tolerance covers that.
inline double worst_error(const float* actual, const float* expected, int64_t count, double scale) {
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double error = std::abs(double{actual[i]} - double{expected[i]}) / scale;
    if (!(error <= std::numeric_limits<double>::max())) {
      return std::numeric_limits<double>::infinity();
    }
    worst = std::fmax(worst, error);
  }
  return worst;
}

// The largest share of each type's tolerance that any test of this program used.
inline std::atomic<double> worst_shares[4] = {};

// `worst_error` in units of the type's tolerance: at most 1 is allowed.
inline double share_of_tolerance(const float* actual, const float* expected, int64_t count,
                                 double scale, DType type) {
  const double share = worst_error(actual, expected, count, scale) / tolerance_of(type);
  std::atomic<double>& worst = worst_shares[static_cast<size_t>(type)];
  for (double known = worst; share > known && !worst.compare_exchange_weak(known, share);) {
  }
  return share;
}

}  // namespace sinkstream
