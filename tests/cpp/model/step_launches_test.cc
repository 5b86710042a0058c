#include "model/cuda/launches.h"

#include <gtest/gtest.h>

#include <memory>
#include <tuple>
#include <vector>

namespace sinkstream {
namespace {

constexpr int64_t kLayers = 2;
constexpr int32_t kToken = 1;

auto fields(const StepLaunches::Round& r) {
  return std::tuple(r.row, r.rows, r.attention, r.count, r.copy, r.copy_count);
}
auto fields(const StepLaunches::Attention& a) {
  return std::tuple(a.row, a.rows, a.span_rows, a.is_split);
}
auto fields(const StepLaunches::Copy& c) { return std::tuple(c.sequence, c.block, c.count); }
auto fields(const StepLaunches::LogitRun& r) { return std::tuple(r.row, r.rows, r.to); }

template <typename T>
auto all_fields(const std::vector<T>& items) {
  std::vector<decltype(fields(items[0]))> all;
  for (const T& item : items) all.push_back(fields(item));
  return all;
}

struct Sequences {
  Sequences(const Window& window, int64_t count)
      : pool({1, 16, DType::kFloat16}, count * kLayers * window.most_pages(), false) {
    for (int64_t i = 0; i < count; ++i) {
      caches.push_back(std::make_unique<SequenceCache>(&pool, window, kLayers, 1 << 20));
    }
  }

  PagePool pool;
  std::vector<std::unique_ptr<SequenceCache>> caches;
};

// A graph launches what a step of its bucket launches without one.
TEST(StepLaunches, OfABucketAreThoseOfAsManySingleRows) {
  const Window window{4, 60};
  for (const int64_t rows : {1, 2, 16, 32, 64}) {
    const Sequences sequences(window, rows);
    std::vector<ForwardSpan> spans;
    for (const auto& cache : sequences.caches) spans.push_back({cache.get(), &kToken, 1});
    ForwardPlan plan(rows);
    plan.make(spans);
    StepLaunches direct(rows);
    direct.begin(plan, rows * window.most_pages());
    for (int64_t row = 0; row < rows; ++row) direct.add_logits(row, 1);
    direct.samples = direct.logit_rows;

    const StepLaunches bucket = StepLaunches::of_bucket(rows);
    EXPECT_EQ(bucket.rows, direct.rows);
    EXPECT_EQ(bucket.logit_rows, direct.logit_rows);
    EXPECT_EQ(bucket.samples, direct.samples);
    EXPECT_EQ(all_fields(bucket.groups[0].rounds), all_fields(direct.groups[0].rounds));
    EXPECT_EQ(all_fields(bucket.groups[0].attentions), all_fields(direct.groups[0].attentions));
    EXPECT_EQ(all_fields(bucket.logit_runs), all_fields(direct.logit_runs));
  }
}

TEST(StepLaunches, SingleRowsShareALaunchAndLongerPiecesHaveTheirOwn) {
  const Sequences sequences({4, 60}, 4);
  const std::vector<int32_t> tokens(100, kToken);
  const auto& caches = sequences.caches;
  const std::vector<ForwardSpan> spans = {{caches[0].get(), tokens.data(), 1},
                                          {caches[1].get(), tokens.data(), 1},
                                          {caches[2].get(), tokens.data(), 100},
                                          {caches[3].get(), tokens.data(), 1}};
  ForwardPlan plan(200);
  plan.make(spans);
  StepLaunches launches(200);
  launches.begin(plan, 12);
  // The long one is cut after the first block of its window: 4 sinks and 64 window tokens.
  using Attention = std::tuple<int64_t, int64_t, int64_t, bool>;
  EXPECT_EQ(all_fields(launches.groups[0].attentions),
            (std::vector<Attention>{
                {0, 2, 1, true}, {2, 68, 68, false}, {70, 32, 32, false}, {102, 1, 1, true}}));
  // Room for as many pages as all single rows have, as one less than the first two, and for none.
  for (const auto& [pages, expected] : {std::pair{6, std::vector<Attention>{{0, 2, 1, true}}},
                                        {5, {{0, 1, 1, true}, {1, 1, 1, true}}},
                                        {2, {{0, 2, 1, false}}}}) {
    launches.begin(plan, pages);
    const auto all = all_fields(launches.groups[0].attentions);
    EXPECT_EQ(std::vector(all.begin(), all.begin() + std::ssize(expected)), expected) << pages;
  }
}

TEST(StepLaunches, OnlyRowsThatDoNotFitInScratchMemoryWalk) {
  const Sequences small({4, 60}, 3), large({4, 200}, 2);  // of 3 pages and of 6
  const std::vector<ForwardSpan> spans = {{small.caches[0].get(), &kToken, 1},
                                          {large.caches[0].get(), &kToken, 1},
                                          {large.caches[1].get(), &kToken, 1},
                                          {small.caches[1].get(), &kToken, 1},
                                          {small.caches[2].get(), &kToken, 1}};
  ForwardPlan plan(5);
  plan.make(spans);
  StepLaunches launches(5);
  launches.begin(plan, 5);
  using Attention = std::tuple<int64_t, int64_t, int64_t, bool>;
  EXPECT_EQ(all_fields(launches.groups[0].attentions),
            (std::vector<Attention>{
                {0, 1, 1, true}, {1, 2, 1, false}, {3, 1, 1, true}, {4, 1, 1, true}}));
}

TEST(StepLaunches, ALongSpanIsOneLaunchAndLeavesItsLastBlocksInTheRing) {
  const Sequences sequences({4, 60}, 3);
  for (const auto& cache : sequences.caches) cache->advance(200);
  const std::vector<int32_t> tokens(300, kToken);
  const auto& caches = sequences.caches;
  const std::vector<ForwardSpan> spans = {{caches[0].get(), tokens.data(), 1},
                                          {caches[1].get(), tokens.data(), 300},
                                          {caches[2].get(), tokens.data(), 70}};
  ForwardPlan plan(400, 6);
  plan.make(spans);
  StepLaunches launches(400);
  launches.begin(plan, 4);
  using Attention = std::tuple<int64_t, int64_t, int64_t, bool>;
  EXPECT_EQ(all_fields(launches.groups[0].attentions),
            (std::vector<Attention>{{0, 1, 1, true}, {1, 300, 300, false}, {301, 70, 70, false}}));
  // Token 200 lies in block 3. A ring of two pages keeps blocks 6 and 7 of the one, 4 of the other.
  using Copy = std::tuple<int32_t, int64_t, int64_t>;
  EXPECT_EQ(all_fields(launches.groups[0].copies), (std::vector<Copy>{{1, 6, 2}, {2, 4, 1}}));
  ASSERT_EQ(launches.groups[0].rounds.size(), 1u);
  EXPECT_EQ(launches.groups[0].rounds[0].copy_count, 2u);
}

TEST(StepLaunches, WantedRowsThatFollowEachOtherAreOneRun) {
  StepLaunches launches(20);
  for (const auto& [row, count] : {std::pair{2, 1}, {3, 4}, {9, 0}, {9, 2}, {1, 1}, {2, 1}}) {
    launches.add_logits(row, count);
  }
  using Run = std::tuple<int64_t, int64_t, int64_t>;
  EXPECT_EQ(all_fields(launches.logit_runs), (std::vector<Run>{{2, 5, 0}, {9, 2, 5}, {1, 2, 7}}));
  EXPECT_EQ(launches.logit_rows, 9);
}

}  // namespace
}  // namespace sinkstream
