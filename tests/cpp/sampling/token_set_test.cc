#include "sampling/token_set.h"

#include <gtest/gtest.h>

namespace sinkstream {
namespace {

TEST(TokenSet, HoldsWhatItWasGiven) {
  const TokenSet set({7, 0, 7, 2147483647, 3});
  EXPECT_EQ(set.ids(), (std::vector<int32_t>{0, 3, 7, 2147483647}));
  for (const int32_t id : {0, 3, 7, 2147483647}) EXPECT_TRUE(set.contains(id));
  for (const int32_t id : {-1, 1, 6, 8, 2147483646}) EXPECT_FALSE(set.contains(id));
}

TEST(TokenSet, MayBeEmpty) { EXPECT_FALSE(TokenSet().contains(0)); }

}  // namespace
}  // namespace sinkstream
