#include "common/usable_threads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "common/thread_pool.h"

namespace sinkstream {
namespace {

// A folder of cgroups, removed at the end.
class QuotaCores : public testing::Test {
 protected:
  ~QuotaCores() override { std::filesystem::remove_all(root_); }

  void write(const std::filesystem::path& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  const std::filesystem::path root_ = std::filesystem::path(testing::TempDir()) /
                                      testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(QuotaCores, AreThoseOfTheTightestGroupAbove) {
  write("cpu.max", "max 100000\n");
  write("a/cpu.max", "150000 100000\n");
  write("a/b/cpu.max", "max 100000\n");
  write("a/b/c/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota_cores("0::/a/b/c\n", root_), 1.5);
  EXPECT_EQ(quota_cores("0::/a\n", root_), 1.5);
  EXPECT_EQ(quota_cores("0::/\n", root_), INFINITY);
}

TEST_F(QuotaCores, OfAContainerAreThoseOfItsRoot) {
  write("cpu.max", "50000 100000\n");
  EXPECT_EQ(quota_cores("0::/../../the/path/of/the/host\n", root_), 0.5);
}

TEST_F(QuotaCores, AreReadInTheFirstVersion) {
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  write("cpu/a/cpu.cfs_quota_us", "20000\n");
  write("cpu/a/cpu.cfs_period_us", "10000\n");
  EXPECT_EQ(quota_cores("3:cpuset:/\n2:cpu,cpuacct:/a\n0::/\n", root_), 2);
  EXPECT_EQ(quota_cores("3:cpuset:/a\n2:cpuacct:/a\n1:cpu:/\n", root_), INFINITY);
}

TEST_F(QuotaCores, AreUnlimitedWhereTheyCannotBeRead) {
  EXPECT_EQ(quota_cores("", root_), INFINITY);
  EXPECT_EQ(quota_cores("0::/a\nnonsense\n:\n", root_), INFINITY);
  for (const char* text : {"", "max", "half 100000", "-5 100000", "100000 0", "100000"}) {
    write("cpu.max", text);
    EXPECT_EQ(quota_cores("0::/\n", root_), INFINITY) << text;
  }
}

TEST(ThreadsWithin, CountsPartsOfACoreAsOne) {
  EXPECT_EQ(threads_within(8, INFINITY), 8);
  EXPECT_EQ(threads_within(8, 2.5), 3);
  EXPECT_EQ(threads_within(8, 0.5), 1);
  EXPECT_EQ(threads_within(2, 7), 2);
}

TEST(ThreadsWithin, IsOneIfTheCoresAreUnknown) { EXPECT_EQ(threads_within(0, INFINITY), 1); }

TEST(ThreadsWithin, IsNoMoreThanAPoolTakes) {
  EXPECT_EQ(threads_within(5000, INFINITY), ThreadPool::kMaxThreads);
}

TEST(UsableThreads, IsBetweenOneAndTheMachine) {
  EXPECT_GE(usable_threads(), 1);
  EXPECT_LE(usable_threads(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace sinkstream
