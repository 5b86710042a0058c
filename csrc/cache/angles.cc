#include "cache/angles.h"

#include <cmath>
#include <numbers>

namespace sinkstream {

namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// The fraction of `revolutions` >= 0; exact.
double fraction_of(double revolutions) { return revolutions - std::floor(revolutions); }

}  // namespace

Angles::Angles(const std::vector<double>& inverse_frequencies, double attention_factor)
    : attention_factor_(attention_factor) {
  frequencies_.reserve(inverse_frequencies.size());
  for (const double radians : inverse_frequencies) {
    // Long double carries the bits of the lower part.
    const long double revolutions = radians / (2 * std::numbers::pi_v<long double>);
    const double upper = static_cast<float>(revolutions);  // 24 bits
    frequencies_.push_back({upper, static_cast<double>(revolutions - upper)});
  }
}

void Angles::fill(const int64_t* positions, int64_t rows, float* cos, float* sin) const {
  for (int64_t r = 0; r < rows; ++r) {
    const auto position = static_cast<double>(positions[r]);
    for (const Frequency& frequency : frequencies_) {
      const double angle =
          (fraction_of(position * frequency.upper) + position * frequency.lower) * kTurn;
      *cos++ = static_cast<float>(std::cos(angle) * attention_factor_);
      *sin++ = static_cast<float>(std::sin(angle) * attention_factor_);
    }
  }
}

}  // namespace sinkstream
