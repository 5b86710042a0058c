#include "cache/window.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace sinkstream {
namespace {

// The definition, literally: what the query of token t sees, in ascending order.
std::vector<int64_t> live_tokens(const Window& window, int64_t t) {
  std::vector<int64_t> live;
  for (int64_t i = 0; i <= t; ++i) {
    const bool is_sink = i < window.sinks;
    const bool is_recent = i >= window.sinks && i > t - window.window && i >= window.begin;
    if (is_sink || is_recent) live.push_back(i);
  }
  return live;
}

// Every small window, and some around block boundaries.
std::vector<Window> windows() {
  std::vector<Window> all;
  for (int64_t sinks = 0; sinks <= 5; ++sinks) {
    for (int64_t window = 1; window <= 6; ++window) {
      for (int64_t begin = 0; begin <= 14; ++begin) all.push_back({sinks, window, begin});
    }
  }
  for (const int64_t sinks : {0, 1, 4, 63, 64, 65, 130}) {
    for (const int64_t window : {1, 2, 63, 64, 65, 66, 127, 128, 129, 130, 200}) {
      all.push_back({sinks, window, 0});
    }
  }
  return all;
}

int64_t far_past(const Window& window) { return window.sinks + 10 * window.window + 20; }

std::string text_of(const Window& window, int64_t t) {
  return "S " + std::to_string(window.sinks) + " W " + std::to_string(window.window) + " begin " +
         std::to_string(window.begin) + " t " + std::to_string(t);
}

// A cut leaves at least the current token, so no query of a window token before `begin` follows it.
bool is_possible(const Window& window, int64_t t) { return t < window.sinks || t >= window.begin; }

TEST(Window, SeesWhatTheDefinitionSays) {
  for (const Window& window : windows()) {
    for (int64_t t = 0; t < far_past(window); ++t) {
      if (!is_possible(window, t)) continue;
      std::vector<int64_t> seen;
      for (int64_t j = 0; j < std::min(window.sinks, t + 1); ++j) seen.push_back(j);
      for (int64_t i = window.first(t); i <= t; ++i) seen.push_back(i);
      ASSERT_EQ(seen, live_tokens(window, t)) << text_of(window, t);
      ASSERT_GE(window.first(t), window.sinks);
      ASSERT_LE(static_cast<int64_t>(seen.size()), window.capacity());
    }
  }
}

TEST(Window, RanksTheQueryLastAmongTheLive) {
  for (const Window& window : windows()) {
    for (int64_t t = 0; t < far_past(window); ++t) {
      if (!is_possible(window, t)) continue;
      const auto live = static_cast<int64_t>(live_tokens(window, t).size());
      ASSERT_EQ(window.rank(t), live - 1) << text_of(window, t);
      if (window.begin <= window.sinks) {
        ASSERT_EQ(window.rank(t), std::min(t, window.capacity() - 1)) << text_of(window, t);
      }
    }
  }
}

TEST(Window, CountsTheLiveAndTheEvicted) {
  for (const Window& window : windows()) {
    EXPECT_EQ(window.live(0), 0);
    EXPECT_EQ(window.evicted(0), 0);
    for (int64_t t = 0; t < far_past(window); ++t) {
      if (!is_possible(window, t)) continue;
      const auto live = static_cast<int64_t>(live_tokens(window, t).size());
      ASSERT_EQ(window.live(t + 1), live) << text_of(window, t);
      ASSERT_EQ(window.evicted(t + 1), t + 1 - live) << text_of(window, t);
    }
  }
}

// evict_for_space may evict everything but the sinks before the next token.
TEST(Window, IsLeftWithItsSinksWhenEverythingElseIsCut) {
  const Window window = {.sinks = 4, .window = 10, .begin = 30};
  EXPECT_EQ(window.live(30), 4);
  EXPECT_EQ(window.evicted(30), 26);
  EXPECT_EQ(window.rank(30), 4);
}

TEST(Window, AlignsBlocksToTheIndex) {
  for (const Window& window : windows()) {
    for (int64_t i = window.sinks; i < window.sinks + 300; ++i) {
      ASSERT_EQ(window.block(i) * kPageRows + window.row(i), i - window.sinks);
      ASSERT_GE(window.row(i), 0);
      ASSERT_LT(window.row(i), kPageRows);
    }
  }
}

// Plays a stream through a ring. After a piece has been written, every token that any of its
// queries sees must still be in its slot.
void play(const Window& window, int64_t pages, int64_t length, int64_t cut) {
  std::map<std::pair<int64_t, int64_t>, int64_t> slots;  // page of the ring, row -> token
  for (int64_t t = 0, count; t < length; t += count) {
    count = window.piece(t, std::min(cut, length - t));
    ASSERT_GE(count, 1) << text_of(window, t);
    ASSERT_LE(count, std::min(cut, length - t)) << text_of(window, t);
    for (int64_t i = std::max(t, window.sinks); i < t + count; ++i) {
      slots[{window.block(i) % pages, window.row(i)}] = i;
    }
    for (int64_t query = t; query < t + count; ++query) {
      for (int64_t i = window.first(query); i <= query; ++i) {
        const std::pair slot{window.block(i) % pages, window.row(i)};
        ASSERT_EQ(slots[slot], i) << text_of(window, query) << " in pieces of " << cut;
      }
    }
  }
}

TEST(Window, NeverWritesAPieceOverALiveToken) {
  for (const Window& window : windows()) {
    if (window.begin > 0) continue;
    for (const int64_t cut : {int64_t{1}, int64_t{7}, int64_t{64}, int64_t{100'000}}) {
      play(window, window.window_pages(), far_past(window), cut);
    }
  }
}

TEST(Window, TakesNoMorePagesThanAShortSequenceNeeds) {
  for (const Window& window : windows()) {
    if (window.begin > 0) continue;
    for (const int64_t length : {1, 5, 64, 65, 70, 129, 130, 200, 400, 3000}) {
      const int64_t pages = window.window_pages_for(length);
      ASSERT_GE(pages, 1);
      ASSERT_LE(pages, window.window_pages());
      play(window, pages, std::min<int64_t>(length, far_past(window)), 64);
      // One page less is too few, unless the ring has its full length.
      const int64_t blocks = length <= window.sinks ? 1 : window.block(length - 1) + 1;
      ASSERT_EQ(pages, std::min(window.window_pages(), blocks)) << text_of(window, length);
    }
  }
}

// While the query of token t may still be repeated, k tokens after it are written.
TEST(Window, HasRoomForTheLookAheadTokensAndNoPageTooMany) {
  for (int64_t size = 1; size < 300; ++size) {
    const Window window{.sinks = 0, .window = size};
    for (int64_t look_ahead = 1; look_ahead <= kPageRows; ++look_ahead) {
      int64_t most = 0;
      for (int64_t t = size; t < size + kPageRows; ++t) {  // every position in a block
        most = std::max(most, window.block(t + look_ahead) - window.block(window.first(t)) + 1);
      }
      ASSERT_EQ(window.window_pages(look_ahead), most) << size << ", " << look_ahead << " ahead";
    }
  }
  for (const Window& window : windows()) {
    for (int64_t t = window.sinks; t < far_past(window); ++t) {
      if (!is_possible(window, t)) continue;
      const int64_t blocks = window.block(t + kLookAhead) - window.block(window.first(t)) + 1;
      ASSERT_LE(blocks, window.window_pages()) << text_of(window, t);
    }
  }
}

TEST(Window, EndsPiecesAtBlocksAndTakesAllSinksAtOnce) {
  const Window window = {.sinks = 70, .window = 500};
  EXPECT_EQ(window.piece(0, 1000), 70 + kPageRows);
  EXPECT_EQ(window.piece(69, 1000), 1 + kPageRows);
  EXPECT_EQ(window.piece(70, 1000), kPageRows);
  EXPECT_EQ(window.piece(71, 1000), kPageRows - 1);
  EXPECT_EQ(window.piece(133, 1000), 1);
  EXPECT_EQ(window.piece(134, 3), 3);
}

TEST(Window, TakesMoreBlocksIntoAPieceWhereTheyHavePagesElsewhere) {
  const Window window = {.sinks = 70, .window = 500};
  EXPECT_EQ(window.piece(0, 1000, 1), 70 + 2 * kPageRows);
  EXPECT_EQ(window.piece(71, 1000, 3), 4 * kPageRows - 1);
  EXPECT_EQ(window.piece(71, 200, 3), 200);
}

TEST(Window, TheRingEndsAfterTheBlockOfEveryToken) {
  for (const Window& window : windows()) {
    const int64_t pages = window.window_pages();
    for (int64_t t = 0; t < far_past(window); ++t) {
      if (!is_possible(window, t)) continue;
      ASSERT_GT(window.ring_end(t, pages), window.block(std::max(t, window.sinks)));
      // The page of that block has the oldest that token t sees.
      ASSERT_EQ(window.ring_end(t, pages) % pages, window.block(window.first(t)) % pages);
    }
  }
  EXPECT_EQ((Window{4, 1000}.ring_end(0, 3)), 3);  // a ring for a short text never wraps
}

TEST(Window, HoldsAtIndexTenMillion) {
  const Window window = {.sinks = 4, .window = 2044};
  const int64_t t = 10'000'000;
  EXPECT_EQ(window.first(t), t - 2043);
  EXPECT_EQ(window.rank(t), 2047);
  EXPECT_EQ(window.live(t + 1), 2048);
  EXPECT_EQ(window.evicted(t + 1), t + 1 - 2048);
  EXPECT_EQ(window.block(t) * kPageRows + window.row(t), t - 4);
}

TEST(Window, KnowsTheMostPagesOfItsCapacityForAnyNumberOfSinks) {
  for (int64_t capacity = 1; capacity < 300; ++capacity) {
    for (const int64_t look_ahead : {1, 2, 3, 17, 63, 64}) {
      int64_t most = 0;
      for (int64_t sinks = 0; sinks < capacity; ++sinks) {
        const Window window{sinks, capacity - sinks};
        most = std::max(most, window.sink_pages() + window.window_pages(look_ahead));
      }
      EXPECT_EQ((Window{0, capacity}.most_pages(look_ahead)), most) << capacity;
      EXPECT_EQ((Window{capacity - 1, 1}.most_pages(look_ahead)), most) << capacity;
    }
  }
}

}  // namespace
}  // namespace sinkstream
