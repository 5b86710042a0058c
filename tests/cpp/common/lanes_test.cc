// Which cases of a product `make test` runs.
#include "lanes.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace sinkstream {
namespace {

// Sets the variable as a run does, and restores it.
class TestCases {
 public:
  explicit TestCases(const char* value) {
    if (const char* before = std::getenv(kName)) before_ = before;
    setenv(kName, value, 1);
  }
  ~TestCases() {
    if (before_) {
      setenv(kName, before_->c_str(), 1);
    } else {
      unsetenv(kName);
    }
  }

 private:
  static constexpr const char* kName = "SINKSTREAM_TEST_CASES";
  std::optional<std::string> before_;
};

// The cases of 5 times 3 times 4 that are run, each as its three indices.
std::set<std::array<int64_t, 3>> cases_run() {
  std::set<std::array<int64_t, 3>> run;
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      for (int64_t k = 0; k < 4; ++k) {
        if (runs_case(3, {i, j, k})) run.insert({i, j, k});
      }
    }
  }
  return run;
}

TEST(Lanes, RunEveryCaseUnlessSomeAreEnough) {
  for (const char* all : {"", "all"}) {
    const TestCases set(all);
    EXPECT_EQ(cases_run().size(), 60u);
  }
}

TEST(Lanes, RunAThirdInWhichEveryTwoValuesMeet) {
  const TestCases set("some");
  const auto run = cases_run();
  EXPECT_EQ(run.size(), 20u);
  std::set<std::array<int64_t, 2>> first, second, third;
  for (const auto& [i, j, k] : run) {
    first.insert({i, j});
    second.insert({i, k});
    third.insert({j, k});
  }
  EXPECT_EQ(first.size(), 15u);
  EXPECT_EQ(second.size(), 20u);
  EXPECT_EQ(third.size(), 12u);
}

TEST(Lanes, GiveEachValueItsIndex) {
  const std::vector<std::pair<int64_t, char>> expected = {{0, 'c'}, {1, 'a'}, {2, 'c'}};
  EXPECT_EQ(indexed({'c', 'a', 'c'}), expected);
  EXPECT_EQ(indexed(std::array{'c', 'a', 'c'}), expected);
}

TEST(Lanes, RefuseAnyOtherWord) {
  const TestCases set("few");
  EXPECT_THROW(are_some_cases_enough(), std::invalid_argument);
}

}  // namespace
}  // namespace sinkstream
