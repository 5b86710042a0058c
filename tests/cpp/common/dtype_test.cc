#include "common/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sinkstream {
namespace {

TEST(DType, Float16RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 stored{static_cast<uint16_t>(bits)};
    const float value = to_float(stored);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(value))));
    } else {
      ASSERT_EQ(to_f16(value).bits, bits);
    }
  }
}

TEST(DType, BFloat16RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = to_float(bf16{static_cast<uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(value))));
    } else {
      ASSERT_EQ(to_bf16(value).bits, bits);
    }
  }
}

// The nearest of two neighbors; if both are equally near, the even one.
template <typename Stored, typename Convert>
void expect_nearest_even(Stored low, Convert convert) {
  const Stored high{static_cast<uint16_t>(low.bits + 1)};
  const double a = to_float(low), b = to_float(high);
  if (!std::isfinite(b)) return;
  const auto middle = static_cast<float>((a + b) / 2);  // exact: one bit more than stored
  const Stored even = low.bits % 2 == 0 ? low : high;
  ASSERT_EQ(convert(middle).bits, even.bits) << middle;
  ASSERT_EQ(convert(std::nextafter(middle, static_cast<float>(a))).bits, low.bits) << middle;
  ASSERT_EQ(convert(std::nextafter(middle, static_cast<float>(b))).bits, high.bits) << middle;
}

TEST(DType, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    expect_nearest_even(f16{static_cast<uint16_t>(bits)}, to_f16);
  }
  for (uint32_t bits = 0x0100; bits < 0x7f80; ++bits) {  // above the subnormals of float32
    expect_nearest_even(bf16{static_cast<uint16_t>(bits)}, to_bf16);
  }
}

TEST(DType, Float16OverflowsToInfinity) {
  EXPECT_EQ(to_f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_f16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(to_f16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
}

}  // namespace
}  // namespace sinkstream
