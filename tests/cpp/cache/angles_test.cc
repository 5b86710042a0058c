#include "cache/angles.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sinkstream {
namespace {

std::vector<double> frequencies_of(double base, int64_t rotary_dim) {
  std::vector<double> frequencies;
  for (int64_t d = 0; d < rotary_dim; d += 2) {
    frequencies.push_back(std::pow(base, -static_cast<double>(d) / rotary_dim));
  }
  return frequencies;
}

// Half a unit in the last place of floats up to 1, and a little for rounding in double.
constexpr double kRounding = 0x1p-25 + 1e-12;

TEST(Angles, AreRightToTheLastFloatAtAnyIndex) {
  for (const double base : {10000.0, 100000.0, 1e6}) {
    const std::vector<double> frequencies = frequencies_of(base, 64);
    const Angles angles(frequencies);
    for (const int64_t index :
         {int64_t{0}, int64_t{1}, int64_t{2047}, int64_t{100'000}, int64_t{4'000'000},
          int64_t{10'000'000}, int64_t{10'000'001}, int64_t{16'777'217}, int64_t{1'000'000'000},
          int64_t{100'000'000'000}}) {
      float cos[32], sin[32];
      angles.fill(&index, 1, cos, sin);
      for (size_t d = 0; d < 32; ++d) {
        // 64 bits hold the product of an index below 2^37 to within 1e-8 turns. If long double is
        // double, only indices up to 2^27 are compared.
        if (sizeof(long double) == sizeof(double) && index > (1 << 27)) continue;
        const long double angle = static_cast<long double>(index) * frequencies[d];
        EXPECT_NEAR(cos[d], std::cos(angle), kRounding) << "index " << index << " pair " << d;
        EXPECT_NEAR(sin[d], std::sin(angle), kRounding) << "index " << index << " pair " << d;
      }
    }
  }
}

// Attention relies on this: two absolute angles differ by the angle of their distance.
TEST(Angles, DifferByTheAngleOfTheDistanceTenMillionTokensOn) {
  const Angles angles(frequencies_of(10000, 128));
  for (int64_t distance = 0; distance < 5000; distance += 37) {
    const int64_t positions[] = {10'000'000 + distance, 10'000'000, distance};
    float cos[3][64], sin[3][64];
    angles.fill(positions, 3, cos[0], sin[0]);
    for (int d = 0; d < 64; ++d) {
      EXPECT_NEAR(double{cos[0][d]} * cos[1][d] + double{sin[0][d]} * sin[1][d], cos[2][d], 2e-7);
      EXPECT_NEAR(double{sin[0][d]} * cos[1][d] - double{cos[0][d]} * sin[1][d], sin[2][d], 2e-7);
    }
  }
}

TEST(Angles, AreMultipliedByTheAttentionFactor) {
  const std::vector<double> frequencies = frequencies_of(10000, 8);
  const Angles plain(frequencies), scaled(frequencies, 1.25);
  const int64_t positions[] = {0, 77};
  float cos[8], sin[8], scaled_cos[8], scaled_sin[8];
  plain.fill(positions, 2, cos, sin);
  scaled.fill(positions, 2, scaled_cos, scaled_sin);
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(scaled_cos[i], 1.25 * cos[i], 1e-7);
    EXPECT_NEAR(scaled_sin[i], 1.25 * sin[i], 1e-7);
  }
}

TEST(Angles, TurnNothingAtPositionZero) {
  const Angles angles(frequencies_of(10000, 64));
  const int64_t position = 0;
  float cos[32], sin[32];
  angles.fill(&position, 1, cos, sin);
  for (int d = 0; d < 32; ++d) {
    EXPECT_EQ(cos[d], 1.0f);
    EXPECT_EQ(sin[d], 0.0f);
  }
}

TEST(Angles, MayHaveNoPairs) {
  const Angles angles({});
  EXPECT_EQ(angles.pairs(), 0);
  const int64_t position = 5;
  angles.fill(&position, 1, nullptr, nullptr);
}

}  // namespace
}  // namespace sinkstream
