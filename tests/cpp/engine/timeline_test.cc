#include "engine/timeline.h"

#include <gtest/gtest.h>

namespace sinkstream {
namespace {

TEST(Latest, GivesRecordsInOrderFromAnyNumberOn) {
  Latest<int, 4> latest;
  EXPECT_TRUE(latest.since(0).empty());
  for (int i = 0; i < 3; ++i) latest.add(i);
  EXPECT_EQ(latest.since(-7), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(latest.since(1), (std::vector<int>{1, 2}));
  EXPECT_TRUE(latest.since(3).empty());
  EXPECT_TRUE(latest.since(99).empty());
}

TEST(Latest, KeepsTheNewestAndSaysWhereTheyBegin) {
  Latest<int, 4> latest;
  for (int i = 0; i < 4 * 25 + 3; ++i) latest.add(i);
  EXPECT_EQ(latest.since(0), (std::vector<int>{99, 100, 101, 102}));
  EXPECT_EQ(latest.first_since(0), 99);
  EXPECT_EQ(latest.first_since(101), 101);
  EXPECT_EQ(latest.first_since(200), 200) << "records that have not come yet are not lost";
}

}  // namespace
}  // namespace sinkstream
