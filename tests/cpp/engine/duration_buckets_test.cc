#include "engine/duration_buckets.h"

#include <gtest/gtest.h>

namespace sinkstream {
namespace {

constexpr size_t kBounds = DurationBuckets::kBoundsNs.size();

TEST(DurationBuckets, CountsADurationUpToItsBoundAndNoFurther) {
  for (size_t bound = 0; bound < kBounds; ++bound) {
    DurationBuckets times;
    times.add(DurationBuckets::kBoundsNs[bound]);
    EXPECT_EQ(times.counts[bound], 1) << bound;
    times.add(DurationBuckets::kBoundsNs[bound] + 1);
    EXPECT_EQ(times.counts[bound], 1) << bound;
    EXPECT_EQ(times.counts[bound + 1], 1) << bound;
  }
}

TEST(DurationBuckets, KeepsWhatIsShorterOrLongerThanAllBounds) {
  DurationBuckets times;
  times.add(0);
  times.add(int64_t{1} << 60);
  EXPECT_EQ(times.counts.front(), 1);
  EXPECT_EQ(times.counts.back(), 1);
  EXPECT_EQ(times.cumulative(kBounds - 1), 1);
  EXPECT_EQ(times.count, 2);
}

TEST(DurationBuckets, BoundsRiseAndCumulativeCountsNeverFall) {
  DurationBuckets times;
  int64_t sum = 0;
  for (int64_t ns = 1; ns < int64_t{1} << 40; ns += ns / 3 + 1) {
    times.add(ns);
    sum += ns;
  }
  EXPECT_EQ(times.sum_ns, sum);
  for (size_t bound = 1; bound < kBounds; ++bound) {
    EXPECT_GT(DurationBuckets::kBoundsNs[bound], DurationBuckets::kBoundsNs[bound - 1]);
    EXPECT_GE(times.cumulative(bound), times.cumulative(bound - 1));
  }
  EXPECT_EQ(times.cumulative(kBounds - 1) + times.counts.back(), times.count);
}

}  // namespace
}  // namespace sinkstream
