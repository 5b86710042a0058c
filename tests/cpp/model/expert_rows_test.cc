#include "model/cpu/expert_rows.h"

#include <gtest/gtest.h>

namespace sinkstream {
namespace {

TEST(ExpertRows, GroupsChoicesByExpertAndKeepsTheOrderOfTokens) {
  ExpertRows rows;
  rows.reserve(6, 5);
  rows.make(std::vector<int32_t>{3, 1, 0, 3, 3, 4}, 2, 5);  // of tokens 0, 1 and 2
  std::vector<std::vector<int64_t>> runs;
  for (const ExpertRows::Run& run : rows.runs()) {
    runs.push_back({run.expert, run.first, run.count});
  }
  EXPECT_EQ(runs, (std::vector<std::vector<int64_t>>{{0, 0, 1}, {1, 1, 1}, {3, 2, 3}, {4, 5, 1}}));
  EXPECT_EQ(std::vector(rows.token_of(), rows.token_of() + 6), (std::vector{1, 0, 0, 1, 2, 2}));
  EXPECT_EQ(std::vector(rows.positions(), rows.positions() + 6), (std::vector{2, 1, 0, 3, 4, 5}));
}

TEST(ExpertRows, ForgetsEarlierChoices) {
  ExpertRows rows;
  rows.make(std::vector<int32_t>{0, 1, 2, 3}, 2, 4);
  rows.make(std::vector<int32_t>{2}, 1, 4);
  ASSERT_EQ(rows.runs().size(), 1u);
  EXPECT_EQ(rows.runs()[0].expert, 2);
  EXPECT_EQ(rows.positions()[0], 0);
}

}  // namespace
}  // namespace sinkstream
