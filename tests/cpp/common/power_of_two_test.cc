#include "common/power_of_two.h"

#include <gtest/gtest.h>

#include <bit>

namespace sinkstream {
namespace {

TEST(PowerOfTwo, IsTheStandardLibrarys) {
  for (int64_t x = 1; x < 5000; ++x) {
    EXPECT_EQ(power_of_two_above(x), static_cast<int64_t>(std::bit_ceil(uint64_t(x)))) << x;
    EXPECT_EQ(power_of_two_below(x), static_cast<int64_t>(std::bit_floor(uint64_t(x)))) << x;
  }
  EXPECT_EQ(power_of_two_above(0), 1);
}

}  // namespace
}  // namespace sinkstream
