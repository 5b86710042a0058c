#include "common/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace sinkstream {
namespace {

using Words = std::array<uint32_t, 4>;

// Random123's kat_vectors, "philox4x32 10".
TEST(Philox, GivesThePublishedNumbers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformTakesTheTop53BitsOfTheFirstTwoWords) {
  EXPECT_EQ(uniform(0, 0), static_cast<double>(0x6627e8d5e169c58d >> 11) * 0x1p-53);
}

TEST(Philox, UniformUsesEveryBitOfSeedAndIndex) {
  std::set<double> seen = {uniform(0, 0)};
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_TRUE(seen.insert(uniform(uint64_t{1} << bit, 0)).second) << "seed bit " << bit;
    EXPECT_TRUE(seen.insert(uniform(0, uint64_t{1} << bit)).second) << "index bit " << bit;
  }
}

TEST(Philox, UniformIsSpreadEvenlyOverTheUnitInterval) {
  constexpr int kDraws = 100000, kBins = 100;
  std::array<int, kBins> bins{};
  for (int i = 0; i < kDraws; ++i) {
    const double x = uniform(42, i);
    ASSERT_GE(x, 0);
    ASSERT_LT(x, 1);
    ++bins[static_cast<int>(x * kBins)];
  }
  double chi_squared = 0;
  for (const int count : bins) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_squared, 149);  // 99 degrees of freedom: exceeded by one seed in a thousand
}

}  // namespace
}  // namespace sinkstream
