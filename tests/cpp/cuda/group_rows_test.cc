#include "kernels/cuda/experts/group_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/device_array.h"
#include "cuda_emulator/orders.h"
#include "model/cpu/expert_rows.h"

namespace sinkstream::cuda {
namespace {

// What each row chose; every seventh is idle if `has_idle`. `crowded`: all want the first experts.
std::vector<int32_t> random_choices(int64_t rows, int64_t chosen, int64_t experts, bool has_idle,
                                    bool crowded) {
  std::mt19937 random(static_cast<uint32_t>(rows + 7 * experts));
  std::vector<int32_t> ids, all(static_cast<size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t row = 0; row < rows; ++row) {
    if (!crowded) std::shuffle(all.begin(), all.end(), random);
    for (int64_t r = 0; r < chosen; ++r) {
      ids.push_back(has_idle && row % 7 == 3 ? -1 : all[static_cast<size_t>(r)]);
    }
  }
  return ids;
}

struct Case {
  int64_t rows, chosen, experts, run_rows;
};

// Against the grouping of a CPU, which knows no idle rows and no runs.
void expect_grouped(const Case& what, bool has_idle, bool crowded) {
  const auto [rows, chosen, experts, run_rows] = what;
  const auto given = random_choices(rows, chosen, experts, has_idle, crowded);
  const DeviceArray<int32_t> ids(given);
  DeviceArray<int32_t> positions(rows * chosen), row_of(rows * chosen), run_count(1);
  const int64_t most = most_runs(rows, chosen, experts, run_rows);
  DeviceArray<ExpertRun> runs(most);
  ASSERT_EQ(group_rows({.ids = ids.get(),
                        .rows = rows,
                        .chosen = chosen,
                        .experts = experts,
                        .run_rows = run_rows,
                        .positions = positions.get(),
                        .row_of = row_of.get(),
                        .runs = runs.get(),
                        .run_count = run_count.get()},
                       nullptr),
            kSuccess);

  std::vector<int32_t> busy, row_of_busy;
  for (int64_t row = 0; row < rows; ++row) {
    if (given[row * chosen] < 0) continue;
    row_of_busy.push_back(static_cast<int32_t>(row));
    busy.insert(busy.end(), given.begin() + row * chosen, given.begin() + (row + 1) * chosen);
  }
  ExpertRows expected;
  expected.reserve(rows * chosen, experts);
  expected.make(busy, chosen, experts);
  for (int64_t i = 0; i < std::ssize(busy); ++i) {
    ASSERT_EQ(row_of[i], row_of_busy[expected.token_of()[i]]) << "position " << i;
    ASSERT_EQ(positions[row_of_busy[i / chosen] * chosen + i % chosen], expected.positions()[i]);
  }
  int64_t run = 0;
  for (const ExpertRows::Run& of_expert : expected.runs()) {
    for (int64_t done = 0; done < of_expert.count; done += run_rows, ++run) {
      ASSERT_LT(run, most);
      EXPECT_EQ(runs[run].expert, of_expert.expert);
      EXPECT_EQ(runs[run].first, of_expert.first + done);
      EXPECT_EQ(runs[run].count, std::min(run_rows, of_expert.count - done));
    }
  }
  EXPECT_EQ(run_count[0], run);
}

TEST(CudaGroupRows, GroupsAsTheProcessorDoes) {
  emulator::in_orders_of_run([](const emulator::Order& order) {
    for (const Case& what : {Case{1, 1, 1, 8},
                             {1, 8, 128, 8},
                             {8, 4, 32, 8},
                             {9, 2, 6, 8},
                             {33, 2, 3, 8},
                             {64, 8, 128, 16},
                             {200, 6, 60, 32},
                             {300, 4, 4, 64},
                             {70, 40, 1024, 8}}) {
      SCOPED_TRACE(order.name);
      for (const bool has_idle : {false, true}) {
        expect_grouped(what, has_idle, false);
        expect_grouped(what, has_idle, true);
      }
    }
  });
}

TEST(CudaGroupRows, NoChoiceHasMoreRunsThanAreExpected) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto experts = static_cast<int64_t>(1 + random() % 40);
    const auto chosen = static_cast<int64_t>(1 + random() % experts);
    const auto rows = static_cast<int64_t>(1 + random() % 100);
    const int64_t run_rows = 8 << random() % 3;
    std::vector<int64_t> counts(static_cast<size_t>(experts));
    for (int64_t row = 0; row < rows; ++row) {  // each row's experts are neighbours
      const auto first = static_cast<int64_t>(random() % experts);
      for (int64_t r = 0; r < chosen; ++r) ++counts[static_cast<size_t>((first + r) % experts)];
    }
    int64_t runs = 0;
    for (const int64_t count : counts) runs += divide_up(count, run_rows);
    ASSERT_LE(runs, most_runs(rows, chosen, experts, run_rows));
  }
}

TEST(CudaGroupRows, SaysWhenItWasNotLaunched) {
  DeviceArray<int32_t> ids(std::vector<int32_t>{0}), positions(1), row_of(1), run_count(1);
  DeviceArray<ExpertRun> runs(1);
  GroupRowsArgs args = {.ids = ids.get(),
                        .chosen = 1,
                        .experts = 1,
                        .run_rows = 8,
                        .positions = positions.get(),
                        .row_of = row_of.get(),
                        .runs = runs.get(),
                        .run_count = run_count.get()};
  EXPECT_EQ(group_rows(args, nullptr), kSuccess);
  EXPECT_TRUE(run_count.is_untouched(0, 1));
  args.rows = 1;
  emulator::fail_next_launch(2);
  EXPECT_EQ(group_rows(args, nullptr), 2);
}

}  // namespace
}  // namespace sinkstream::cuda
