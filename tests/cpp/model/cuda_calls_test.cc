#include "model/cuda/calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <tuple>
#include <vector>

namespace sinkstream {
namespace {

constexpr int64_t kLayers = 2;
constexpr int32_t kToken = 1;

auto fields(const CudaCalls::Round& r) {
  return std::tuple(r.row, r.rows, r.attention, r.count, r.copy, r.copy_count);
}
auto fields(const CudaCalls::Attention& a) {
  return std::tuple(a.row, a.rows, a.span_rows, a.is_split);
}
auto fields(const CudaCalls::Copy& c) { return std::tuple(c.sequence, c.block, c.count); }
auto fields(const CudaCalls::Run& r) { return std::tuple(r.row, r.rows, r.to); }

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

// A graph launches what a step of its bucket would launch without one.
TEST(CudaCalls, OfABucketAreThoseOfAsManySingleRows) {
  const Window window{4, 60};
  for (const int64_t rows : {1, 2, 16, 32, 64}) {
    const Sequences sequences(window, rows);
    std::vector<ForwardSpan> spans;
    for (const auto& cache : sequences.caches) spans.push_back({cache.get(), &kToken, 1});
    ForwardPlan plan(rows);
    plan.make(spans);
    CudaCalls direct(rows);
    direct.begin(plan, window.most_pages());
    for (int64_t row = 0; row < rows; ++row) direct.want(row, 1);
    direct.draws = direct.wanted;

    const CudaCalls bucket = CudaCalls::of_bucket(rows);
    EXPECT_EQ(bucket.rows, direct.rows);
    EXPECT_EQ(bucket.wanted, direct.wanted);
    EXPECT_EQ(bucket.draws, direct.draws);
    EXPECT_EQ(all_fields(bucket.rounds), all_fields(direct.rounds));
    EXPECT_EQ(all_fields(bucket.attentions), all_fields(direct.attentions));
    EXPECT_EQ(all_fields(bucket.runs), all_fields(direct.runs));
  }
}

TEST(CudaCalls, SingleRowsShareALaunchAndLongerPiecesHaveTheirOwn) {
  const Sequences sequences({4, 60}, 4);
  const std::vector<int32_t> tokens(100, kToken);
  const auto& caches = sequences.caches;
  const std::vector<ForwardSpan> spans = {{caches[0].get(), tokens.data(), 1},
                                          {caches[1].get(), tokens.data(), 1},
                                          {caches[2].get(), tokens.data(), 100},
                                          {caches[3].get(), tokens.data(), 1}};
  ForwardPlan plan(200);
  plan.make(spans);
  CudaCalls calls(200);
  calls.begin(plan, 4);
  // The long one is cut behind the block of its last sink: 4 sinks and 64 of its window.
  using Attention = std::tuple<int64_t, int64_t, int64_t, bool>;
  EXPECT_EQ(all_fields(calls.attentions),
            (std::vector<Attention>{
                {0, 2, 1, true}, {2, 68, 68, false}, {70, 32, 32, false}, {102, 1, 1, true}}));
  calls.begin(plan, 2);  // fewer pages than the caches have
  EXPECT_EQ(fields(calls.attentions[0]), Attention(0, 2, 1, false));
}

TEST(CudaCalls, ALongSpanIsOneLaunchAndLeavesItsLastBlocksInTheRing) {
  const Sequences sequences({4, 60}, 3);
  for (const auto& cache : sequences.caches) cache->advance(200);
  const std::vector<int32_t> tokens(300, kToken);
  const auto& caches = sequences.caches;
  const std::vector<ForwardSpan> spans = {{caches[0].get(), tokens.data(), 1},
                                          {caches[1].get(), tokens.data(), 300},
                                          {caches[2].get(), tokens.data(), 70}};
  ForwardPlan plan(400, 6);
  plan.make(spans);
  CudaCalls calls(400);
  calls.begin(plan, 4);
  using Attention = std::tuple<int64_t, int64_t, int64_t, bool>;
  EXPECT_EQ(all_fields(calls.attentions),
            (std::vector<Attention>{{0, 1, 1, true}, {1, 300, 300, false}, {301, 70, 70, false}}));
  // Token 200 lies in block 3. A ring of two pages keeps blocks 6 and 7 of the one, 4 of the other.
  using Copy = std::tuple<int32_t, int64_t, int64_t>;
  EXPECT_EQ(all_fields(calls.copies), (std::vector<Copy>{{1, 6, 2}, {2, 4, 1}}));
  ASSERT_EQ(calls.rounds.size(), 1u);
  EXPECT_EQ(calls.rounds[0].copy_count, 2u);
}

TEST(CudaCalls, WantedRowsThatFollowEachOtherAreOneRun) {
  CudaCalls calls(20);
  for (const auto& [row, count] : {std::pair{2, 1}, {3, 4}, {9, 0}, {9, 2}, {1, 1}, {2, 1}}) {
    calls.want(row, count);
  }
  using Run = std::tuple<int64_t, int64_t, int64_t>;
  EXPECT_EQ(all_fields(calls.runs), (std::vector<Run>{{2, 5, 0}, {9, 2, 5}, {1, 2, 7}}));
  EXPECT_EQ(calls.wanted, 9);
}

}  // namespace
}  // namespace sinkstream
