#include "cache/sequence_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "common/errors.h"
#include "kernels/reference/page_element.h"

namespace sinkstream {
namespace {

constexpr PageShape kShape{1, 4, DType::kFloat16};
constexpr int64_t kLayers = 2;
constexpr int64_t kEndless = int64_t{1} << 60;

TEST(SequenceCache, TakesExactlyItsPagesAndReturnsThem) {
  const Window window{70, 100};
  EXPECT_EQ(SequenceCache::memory_needed(window, kLayers, kEndless).pages[0], kLayers * (2 + 3));
  PagePool pool(kShape, 10);
  {
    const SequenceCache cache(&pool, window, kLayers, kEndless);
    EXPECT_EQ(pool.free_pages(), 0);
    EXPECT_EQ(cache.group(0).sink_page_count, 2);
    EXPECT_EQ(cache.group(0).window_page_count, 3);
    EXPECT_THROW(SequenceCache(&pool, window, kLayers, kEndless), InternalError);
  }
  EXPECT_EQ(pool.free_pages(), 10);
}

TEST(SequenceCache, TakesFewerPagesWhenItWillStayShort) {
  const Window window{4, 1000};
  EXPECT_EQ(SequenceCache::memory_needed(window, 1, 4).pages[0], 1 + 1);
  EXPECT_EQ(SequenceCache::memory_needed(window, 1, 4 + 64).pages[0], 1 + 1);
  EXPECT_EQ(SequenceCache::memory_needed(window, 1, 4 + 65).pages[0], 1 + 2);
  EXPECT_EQ(SequenceCache::memory_needed(window, 1, kEndless).pages[0], 1 + 17);
}

// Writes tokens piece by piece and records the index in each slot. When a piece's queries run,
// every key that they see must still be in its slot.
TEST(SequenceCache, NeverOverwritesAKeyThatAQueryOfThePieceSees) {
  for (const int64_t sinks : {0, 1, 4, 63, 64, 65, 130}) {
    for (const int64_t window : {1, 2, 63, 64, 65, 127, 128, 129, 200}) {
      for (const int64_t chunk : {1, 5, 64, 100, 1000}) {
        const Window rule{sinks, window};
        PagePool pool(kShape, SequenceCache::memory_needed(rule, 1, kEndless).pages[0]);
        SequenceCache cache(&pool, rule, 1, kEndless);
        std::map<std::pair<std::byte*, int64_t>, int64_t> holds;
        const int64_t end = 4 * (sinks + window) + 150;
        while (cache.length() < end) {
          const int64_t begin = cache.length();
          const int64_t count = rule.piece(begin, std::min(chunk, end - begin));
          ASSERT_GE(count, 1);
          for (int64_t t = begin; t < begin + count; ++t) {
            const Slot slot = cache.slot(0, t);
            holds[{slot.page, slot.row}] = t;
          }
          for (int64_t t = begin; t < begin + count; ++t) {
            for (int64_t j = 0; j < std::min(sinks, t + 1); ++j) {
              const Slot slot = cache.slot(0, j);
              ASSERT_EQ((holds[{slot.page, slot.row}]), j);
            }
            for (int64_t i = rule.first(t); i <= t; ++i) {
              const Slot slot = cache.slot(0, i);
              ASSERT_EQ((holds[{slot.page, slot.row}]), i) << sinks << " " << window << " " << t;
            }
          }
          cache.advance(count);
        }
      }
    }
  }
}

TEST(SequenceCache, CountsLiveAndEvictedTokens) {
  const Window window{3, 5};
  PagePool pool(kShape, SequenceCache::memory_needed(window, 1, kEndless).pages[0]);
  SequenceCache cache(&pool, window, 1, kEndless);
  EXPECT_EQ(cache.live(), 0);
  cache.advance(8);
  EXPECT_EQ(cache.live(), 8);
  EXPECT_EQ(cache.evicted(), 0);
  cache.advance(1);
  EXPECT_EQ(cache.live(), 8);
  EXPECT_EQ(cache.evicted(), 1);
  cache.advance(1'000'000);
  EXPECT_EQ(cache.live(), 8);
  EXPECT_EQ(cache.evicted(), 1'000'001);
}

TEST(SequenceCache, RefusesToGrowPastItsLength) {
  PagePool pool(kShape, 4);
  SequenceCache cache(&pool, Window{1, 100}, 1, 10);
  cache.advance(10);
  EXPECT_THROW(cache.advance(1), InternalError);
}

// As StreamingLLM evicts before a turn: S sinks and the last R − n tokens stay, with R = W − 1.
TEST(SequenceCache, EvictsForSpaceOnlyWhatDoesNotFit) {
  const Window window{3, 6};
  PagePool pool(kShape, SequenceCache::memory_needed(window, 1, kEndless).pages[0]);
  SequenceCache cache(&pool, window, 1, kEndless);
  cache.evict_for_space(5);  // nothing is cached yet
  EXPECT_EQ(cache.window().begin, 0);
  cache.advance(6);
  cache.evict_for_space(2);  // 6 + 2 fit in 3 + 5
  EXPECT_EQ(cache.live(), 6);
  EXPECT_EQ(cache.window().rank(6), 6);
  cache.evict_for_space(4);  // 3 sinks and the last 5 − 4 tokens stay
  EXPECT_EQ(cache.window().first(6), 5);
  EXPECT_EQ(cache.window().rank(6), 4);
  cache.advance(100);
  EXPECT_EQ(cache.live(), 9);
  cache.evict_for_space(5);
  EXPECT_EQ(cache.window().rank(106), 3);
  EXPECT_EQ(cache.live(), 3);
  EXPECT_THROW(cache.evict_for_space(6), InvalidArgument);
  EXPECT_THROW(cache.evict_for_space(-1), InvalidArgument);
}

TEST(SequenceCache, IsCutWithinItsWindowOnly) {
  const Window window{2, 10};
  PagePool pool(kShape, SequenceCache::memory_needed(window, 1, kEndless).pages[0]);
  SequenceCache cache(&pool, window, 1, kEndless);
  cache.advance(50);
  EXPECT_EQ(window.first(50), 41);
  EXPECT_THROW(cache.cut(40), InternalError);
  EXPECT_THROW(cache.cut(51), InternalError);
  cache.cut(45);
  EXPECT_EQ(cache.live(), 2 + 5);
  EXPECT_EQ(cache.evicted(), 43);
  cache.advance(1);
  EXPECT_EQ(cache.window().rank(51), 2 + 6);
}

TEST(SequenceCache, CopiesTokensCutsAndPages) {
  const Window window{2, 70};
  PagePool pool(kShape, 3 * SequenceCache::memory_needed(window, kLayers, kEndless).pages[0]);
  SequenceCache cache(&pool, window, kLayers, kEndless);
  for (int64_t t = 0; t < 300; ++t) *cache.slot(1, t).page = static_cast<std::byte>(t % 251);
  cache.advance(300);
  cache.cut(250);
  SequenceCache copy(&pool, window, kLayers, kEndless);
  copy.copy_from(cache);
  EXPECT_EQ(copy.length(), 300);
  EXPECT_EQ(copy.live(), cache.live());
  EXPECT_EQ(copy.window().begin, 250);
  for (int64_t t = 250; t < 300; ++t) {
    EXPECT_NE(copy.slot(1, t).page, cache.slot(1, t).page);
    EXPECT_EQ(*copy.slot(1, t).page, *cache.slot(1, t).page);
  }
  SequenceCache shorter(&pool, Window{2, 70}, 1, kEndless);
  EXPECT_THROW(shorter.copy_from(cache), InternalError);
}

TEST(SequenceCache, MakesEvictedTokensNaNInEveryTypeWhereThePoolPoisons) {
  using reference::Half;
  for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8}) {
    const PageShape shape{2, 4, type};
    const Window window{3, 70};
    PagePool pool(shape, SequenceCache::memory_needed(window, kLayers, kEndless).pages[0], true);
    SequenceCache cache(&pool, window, kLayers, kEndless);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t t = 0; t < 100; ++t) {
        std::memset(cache.slot(layer, t).page, 0, shape.bytes());  // 0 in every type
      }
    }
    cache.advance(100);
    const int64_t first = window.first(100);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t t = 0; t < 100; ++t) {
        const bool is_evicted = t >= window.sinks && t < first;
        const Slot at = cache.slot(layer, t);
        for (const Half half : {Half::kKeys, Half::kValues}) {
          for (int64_t head = 0; head < 2; ++head) {
            const float number = reference::read_element(at.page, shape, half, head, at.row, 3);
            ASSERT_EQ(std::isnan(number), is_evicted) << name_of(type) << " token " << t;
          }
        }
      }
    }
  }
}

TEST(SequenceCache, CountsTokensInFlightOnlyOnceTheyAreDelivered) {
  PagePool pool(kShape, 20);
  SequenceCache cache(&pool, {2, 10}, kLayers, 40);
  cache.add_in_flight(16);
  cache.add_in_flight(5);
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(cache.live(), 0);
  EXPECT_EQ(cache.next_index(), 21);
  cache.commit_in_flight(16);
  EXPECT_EQ(cache.length(), 16);
  EXPECT_EQ(cache.evicted(), 4);
  EXPECT_EQ(cache.in_flight(), 5);
  EXPECT_THROW(cache.commit_in_flight(6), InternalError) << "fewer are in flight";
  EXPECT_THROW(cache.add_in_flight(20), InternalError) << "it was made for 40";
  cache.drop_in_flight();
  EXPECT_EQ(cache.next_index(), 16);
  EXPECT_NO_THROW(cache.add_in_flight(24));
}

// A chunk in flight is in rows that have just been evicted: those must not be poisoned.
TEST(SequenceCache, PoisonsNoRowThatAStepInFlightHasWritten) {
  const Window window{4, 60};
  PagePool pool(kShape, SequenceCache::memory_needed(window, 1, kEndless).pages[0],
                /*poison=*/true);
  SequenceCache cache(&pool, window, 1, kEndless);
  for (const int64_t chunk : {100, 100, 100}) {
    for (int64_t t = cache.next_index(); t < cache.next_index() + chunk; ++t) {
      const Slot at = cache.slot(0, t);
      for (int64_t d = 0; d < kShape.head_dim; ++d) {
        std::memset(at.page + kShape.key_element(at.row, d) * bytes_of(kShape.type), 0,
                    static_cast<size_t>(bytes_of(kShape.type)));
      }
    }
    cache.add_in_flight(chunk);
    if (cache.in_flight() > chunk) cache.commit_in_flight(chunk);
    for (int64_t t = std::max(window.first(cache.next_index()), cache.length());
         t < cache.next_index(); ++t) {
      const Slot at = cache.slot(0, t);
      EXPECT_EQ(reference::read_element(at.page, kShape, reference::Half::kKeys, 0, at.row, 3), 0)
          << "token " << t << " of " << cache.next_index();
    }
  }
}

TEST(SequenceCache, JumpsToAnIndexFarAway) {
  const Window window{4, 10};
  PagePool pool(kShape, SequenceCache::memory_needed(window, 1, kEndless).pages[0]);
  SequenceCache cache(&pool, window, 1, kEndless);
  EXPECT_THROW(cache.jump(10'000'000), InternalError);  // the sinks are not there yet
  cache.advance(4);
  cache.jump(10'000'000);
  EXPECT_EQ(cache.window().first(10'000'000), 10'000'000);
  EXPECT_EQ(cache.window().rank(10'000'000), 4);
  EXPECT_EQ(cache.live(), 4);
  cache.advance(3);
  EXPECT_EQ(cache.live(), 7);
  cache.restart();
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(cache.window().begin, 0);
}

}  // namespace
}  // namespace sinkstream
