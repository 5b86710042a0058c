#include "engine/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace sinkstream {
namespace {

TEST(Histogram, OfNothingHasNoQuantiles) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.quantile_s(0.5), 0);
}

TEST(Histogram, FindsQuantilesToThreePercent) {
  std::mt19937 draw(1);
  std::lognormal_distribution<double> durations(16, 2);  // 9 ms, from microseconds to seconds
  Histogram histogram;
  std::vector<double> all;
  for (int i = 0; i < 20000; ++i) {
    const auto nanoseconds = static_cast<int64_t>(durations(draw));
    if (nanoseconds < 2048) continue;
    histogram.record(nanoseconds);
    all.push_back(static_cast<double>(nanoseconds) * 1e-9);
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(histogram.count(), all.size());
  for (const double q : {0.01, 0.5, 0.9, 0.99, 1.0}) {
    const double exact =
        all[static_cast<size_t>(std::ceil(q * static_cast<double>(all.size()))) - 1];
    EXPECT_NEAR(histogram.quantile_s(q), exact, exact * 0.035) << q;
  }
}

TEST(Histogram, KeepsExtremesInItsOutermostBuckets) {
  for (const int64_t nanoseconds :
       {int64_t{-5}, int64_t{0}, int64_t{1023}, int64_t{1024}, int64_t{1} << 42, INT64_MAX}) {
    Histogram histogram;
    histogram.record(nanoseconds);
    EXPECT_EQ(histogram.count(), 1u);
    EXPECT_GT(histogram.quantile_s(0.5), 0);
  }
}

}  // namespace
}  // namespace sinkstream
