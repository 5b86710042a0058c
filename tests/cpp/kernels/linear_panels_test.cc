// How threads share the panels and tiles of one call of linear.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "common/divide_up.h"
#include "common/thread_pool.h"
#include "kernels/linear.h"

namespace sinkstream {
namespace {

constexpr int kLanes = 16;

#include "kernels/cpu/linear/panels.inl"

constexpr int64_t kTileTokens = 8;

struct Shape {
  int64_t tokens, cols;
  std::vector<int64_t> rows;  // of each part
  int64_t together = 1;       // panels that stay in one task
};

std::vector<Share> shares_of(const Shape& shape, int threads) {
  std::vector<LinearPart> parts;
  for (const int64_t rows : shape.rows) {
    parts.push_back({.weights = {.type = WeightType::kBFloat16, .rows = rows, .cols = shape.cols}});
  }
  const LinearArgs args = {.tokens = shape.tokens,
                           .cols = shape.cols,
                           .parts = parts.data(),
                           .part_count = static_cast<int64_t>(parts.size())};
  ThreadPool pool(threads);
  std::mutex mutex;
  std::vector<Share> shares;
  const auto begin = [](int) {};
  const Grain grain = {
      .tile_tokens = kTileTokens, .token_bytes = shape.cols * 2, .panels = shape.together};
  share_panels(args, {&pool}, grain, begin, [&](const Share& share, int) {
    const std::lock_guard lock(mutex);
    shares.push_back(share);
  });
  return shares;
}

void expect_one_meeting_each(const Shape& shape, int threads) {
  int64_t panels = 0;
  for (const int64_t count : shape.rows) panels += panel_count(count);
  const int64_t tiles = divide_up(shape.tokens, kTileTokens);
  std::vector<int> meetings(panels * tiles);
  for (const Share& share : shares_of(shape, threads)) {
    ASSERT_LT(share.first_panel, share.end_panel);
    ASSERT_LT(share.first_tile, share.end_tile);
    ASSERT_EQ(share.first_panel % shape.together, 0);
    ASSERT_TRUE(share.end_panel % shape.together == 0 || share.end_panel == panels);
    for (int64_t panel = share.first_panel; panel < share.end_panel; ++panel) {
      for (int64_t tile = share.first_tile; tile < share.end_tile; ++tile) {
        ++meetings.at(panel * tiles + tile);
      }
    }
  }
  ASSERT_EQ(std::count(meetings.begin(), meetings.end(), 1), panels * tiles)
      << shape.tokens << " tokens, " << shape.cols << " columns, " << panels << " panels";
}

TEST(LinearPanels, EveryPanelMeetsEveryTileOnce) {
  for (const int threads : {1, 2, 3}) {
    for (const int64_t tokens : {1, 7, 8, 9, 33, 512, 1001}) {
      for (const int64_t cols : {1, 576, 1536, 8192, 1000000}) {
        for (const std::vector<int64_t>& rows :
             {std::vector<int64_t>{1}, {16, 0, 17}, {576, 192, 192}, {5000, 5000}}) {
          for (const int64_t together : {1, 2}) {
            expect_one_meeting_each({tokens, cols, rows, together}, threads);
          }
        }
      }
    }
  }
}

TEST(LinearPanels, BlocksAreOfAboutOneSize) {
  for (const int64_t cols : {576, 1536, 3072, 8192}) {
    std::vector<int64_t> tiles;
    for (const Share& share : shares_of({512, cols, {1024}}, 2)) {
      tiles.push_back(share.end_tile - share.first_tile);
    }
    const auto [least, most] = std::minmax_element(tiles.begin(), tiles.end());
    EXPECT_GE(4 * *least, 3 * *most) << cols;
    EXPECT_GE(*most * kTileTokens, kMinBlockTokens) << cols;
  }
}

TEST(LinearPanels, FewPanelsOfManyTokensStillGiveEveryThreadSixteenTasks) {  // tsan
  EXPECT_GE(shares_of({512, 576, {576}}, 16).size(), 16u * 16);
  EXPECT_GE(shares_of({512, 576, {16}}, 2).size(), 2u * 16);
}

TEST(LinearPanels, AThreadReadsTheCopyOfATokenThatItHasMade) {  // tsan
  constexpr int kThreads = 3;
  const LinearPart part = {.weights = {.type = WeightType::kBFloat16, .rows = 5000, .cols = 64}};
  for (const int64_t tokens : {1, 2}) {
    const LinearArgs args = {.tokens = tokens, .cols = 64, .parts = &part, .part_count = 1};
    ThreadPool pool(kThreads);
    const Launch launch = {&pool};
    std::vector<std::atomic<std::thread::id>> maker(kThreads);
    std::atomic<int> made{0}, missing{0}, others{0}, beyond{0};
    const auto prepare = [&](int64_t copy, int64_t) {
      maker.at(copy) = std::this_thread::get_id();
      ++made;
    };
    const auto begin = lay_out_inputs(args, launch, 1, prepare);
    EXPECT_EQ(made.load(), tokens == 1 ? 0 : 1);
    const Grain grain = {.tile_tokens = kTileTokens, .token_bytes = 128};
    share_panels(args, launch, grain, begin, [&](const Share&, int thread) {
      while (tokens == 1 && made < kThreads) std::this_thread::yield();  // all threads take part
      const int64_t copy = input_copy_of(args, thread);
      const std::thread::id by = maker.at(copy);
      if (by == std::thread::id()) ++missing;
      if (by != std::this_thread::get_id()) ++others;
      if (copy > 0) ++beyond;
    });
    EXPECT_EQ(missing.load(), 0);
    if (tokens == 1) EXPECT_EQ(others.load(), 0);
    if (tokens > 1) EXPECT_EQ(beyond.load(), 0) << "there is one copy of several tokens";
  }
}

// Inputs are laid out once for each of these runs.
TEST(LinearPanels, AdjacentPartsThatReadTheSameTokensAreOneRun) {
  const float numbers[128] = {};
  const int32_t rows[2] = {1, 0};
  const float* const input = numbers;
  const LinearPart parts[] = {
      {},
      {.tokens = 7},  // not read without an input
      {.input = input, .input_stride = 64, .tokens = 2},
      {.input = input, .input_stride = 64, .tokens = 2},
      {.input = input, .input_stride = 64, .tokens = 1},
      {.input = input, .input_stride = 64, .tokens = 1, .row_of = rows},
      {.input = input, .input_stride = 64, .tokens = 1, .row_of = rows + 1},
      {.input = input + 1, .input_stride = 64, .tokens = 1, .row_of = rows + 1},
      {.input = input + 1, .input_stride = 32, .tokens = 1, .row_of = rows + 1},
      {},
  };
  const LinearArgs args = {.input = input + 64,
                           .input_stride = 65,
                           .tokens = 5,
                           .row_of = rows,
                           .cols = 1,
                           .parts = parts,
                           .part_count = std::ssize(parts)};
  std::vector<std::pair<int64_t, int64_t>> runs;  // first part, count
  for_each_input(args, [&](const LinearArgs& run) {
    runs.emplace_back(run.parts - parts, run.part_count);
    const LinearPart& part = *run.parts;
    const bool is_own = part.input != nullptr;
    EXPECT_EQ(run.input, is_own ? part.input : args.input);
    EXPECT_EQ(run.input_stride, is_own ? part.input_stride : args.input_stride);
    EXPECT_EQ(run.tokens, is_own ? part.tokens : args.tokens);
    EXPECT_EQ(run.row_of, is_own ? part.row_of : args.row_of);
    int again = 0;
    for_each_input(run, [&](const LinearArgs& same) {
      ++again;
      EXPECT_EQ(same.input, run.input);
      EXPECT_EQ(same.part_count, run.part_count);
    });
    EXPECT_EQ(again, 1);
  });
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 2}, {2, 2}, {4, 1}, {5, 1},
                                                             {6, 1}, {7, 1}, {8, 1}, {9, 1}};
  EXPECT_EQ(runs, expected);
}

TEST(LinearPanels, NothingIsSharedOutOfNothing) {
  EXPECT_TRUE(shares_of({0, 64, {16}}, 1).empty());
  EXPECT_TRUE(shares_of({8, 64, {0}}, 1).empty());
  EXPECT_TRUE(shares_of({8, 64, {}}, 1).empty());
}

}  // namespace
}  // namespace sinkstream
