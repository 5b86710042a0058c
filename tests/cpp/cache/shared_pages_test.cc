// Sequences that share pages: each finds in its slots what it wrote, or what the sequence that it
// started from had written, and nothing else. No page is lost.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <list>
#include <random>
#include <utility>
#include <vector>

#include "cache/sequence_cache.h"
#include "common/errors.h"

namespace sinkstream {
namespace {

constexpr PageShape kShape{1, 2, DType::kFloat32};
constexpr int64_t kLayers = 2;
constexpr int64_t kEndless = int64_t{1} << 60;

// A sequence, and the mark of each of its tokens, those in flight included, as a plain list.
struct Marked {
  template <typename... Args>
  explicit Marked(std::vector<uint32_t> known, Args&&... args)
      : cache(std::forward<Args>(args)...), marks(std::move(known)) {}

  SequenceCache cache;
  std::vector<uint32_t> marks;
  std::deque<int64_t> in_flight;  // tokens of each step
};

std::vector<uint32_t> first_marks(const Marked& one, int64_t count) {
  return {one.marks.begin(), one.marks.begin() + count};
}

std::byte* row_of(const SequenceCache& cache, int64_t layer, int64_t index) {
  const Slot slot = cache.slot(layer, index);
  const PageShape& shape = cache.group_of(layer).shape();
  return slot.page + shape.key_element(slot.row, 0) * int64_t{sizeof(float)};
}

// Writes as a launched step does.
void add_in_flight(Marked* one, int64_t count, std::mt19937* random) {
  one->cache.make_writable(count);
  for (int64_t i = 0; i < count; ++i) {
    const auto mark = static_cast<uint32_t>((*random)());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const uint32_t bits = mark + static_cast<uint32_t>(layer);
      std::memcpy(row_of(one->cache, layer, one->cache.next_index() + i), &bits, sizeof(bits));
    }
    one->marks.push_back(mark);
  }
  one->cache.add_in_flight(count);
  one->in_flight.push_back(count);
}

void commit_in_flight(Marked* one) {
  one->cache.commit_in_flight(one->in_flight.front());
  one->in_flight.pop_front();
}

void write(Marked* one, int64_t count, std::mt19937* random) {
  add_in_flight(one, count, random);
  commit_in_flight(one);
}

// Every row that the next token would see.
void expect_own_rows(const Marked& one) {
  const SequenceCache& cache = one.cache;
  const int64_t next = cache.next_index();
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const Window& window = cache.group_of(layer).window;
    const auto expect_row = [&](int64_t t) {
      uint32_t bits;
      std::memcpy(&bits, row_of(cache, layer, t), sizeof(bits));
      ASSERT_EQ(bits, one.marks[static_cast<size_t>(t)] + static_cast<uint32_t>(layer))
          << "token " << t << " of " << cache.next_index() << " in layer " << layer;
    };
    for (int64_t t = 0; t < std::min(window.sinks, next); ++t) expect_row(t);
    for (int64_t t = window.first(next); t < next; ++t) expect_row(t);
  }
}

// How many of the next tokens may be written at once in every layer.
int64_t piece_of(const SequenceCache& cache, int64_t most) {
  for (int64_t group = 0; group < cache.group_count(); ++group) {
    most = cache.group(group).window.piece(cache.next_index(), most);
  }
  return most;
}

TEST(SharedPages, SinksThatAreFullSaveTheirPages) {
  const Window window{100, 200};
  EXPECT_EQ(SequenceCache::memory_saved(window, 3, 0).pages[0], 0);
  EXPECT_EQ(SequenceCache::memory_saved(window, 3, 63).pages[0], 0);
  EXPECT_EQ(SequenceCache::memory_saved(window, 3, 64).pages[0], 3);
  EXPECT_EQ(SequenceCache::memory_saved(window, 3, 99).pages[0], 3);
  EXPECT_EQ(SequenceCache::memory_saved(window, 3, 100).pages[0], 6)
      << "no row of these pages is written again";
  EXPECT_EQ(SequenceCache::memory_saved(window, 3, 1000).pages[0], 6);
}

TEST(SharedPages, TakesExactlyWhatItAnnounced) {
  for (const int64_t count : {0, 1, 63, 64, 65, 99, 100, 101, 163, 164, 165, 290, 299}) {
    const Window window{100, 200};
    const int64_t needed = SequenceCache::memory_needed(window, kLayers, kEndless).pages[0];
    const int64_t less = needed - SequenceCache::memory_saved(window, kLayers, count).pages[0];
    PagePool pool(kShape, needed + less);
    std::mt19937 random(1);
    Marked first({}, &pool, window, kLayers, kEndless);
    write(&first, 299, &random);
    {
      const SequenceCache second(first.cache, kEndless, count);
      EXPECT_EQ(pool.free_pages(), 0) << count;
      EXPECT_THROW(SequenceCache(first.cache, kEndless, count), InternalError);
    }
    EXPECT_EQ(pool.free_pages(), less) << count;
    expect_own_rows(first);
  }
}

TEST(SharedPages, OnlyACompletePrefixCanBeShared) {
  const Window window{4, 60};
  PagePool pool(kShape, 100);
  std::mt19937 random(1);
  Marked one({}, &pool, window, kLayers, kEndless);
  write(&one, 63, &random);
  EXPECT_EQ(one.cache.shareable(), 63);
  write(&one, 1, &random);  // the next token sees one token less
  EXPECT_EQ(one.cache.shareable(), 4);
  EXPECT_THROW(SequenceCache(one.cache, kEndless, 5), InternalError);
  EXPECT_THROW(SequenceCache(one.cache, 10, 64), InternalError) << "longer than its max_length";
  EXPECT_NO_THROW(SequenceCache(one.cache, kEndless, 4));
  EXPECT_NO_THROW(SequenceCache(one.cache, kEndless, 64));
}

TEST(SharedPages, WhatAStepInFlightOverwritesCannotBeShared) {
  const Window window{4, 60};
  PagePool pool(kShape, 100);
  std::mt19937 random(1);
  Marked one({}, &pool, window, kLayers, kEndless);
  write(&one, 30, &random);
  add_in_flight(&one, 33, &random);
  EXPECT_EQ(one.cache.shareable(), 30) << "not what is in flight";
  EXPECT_NO_THROW(SequenceCache(one.cache, kEndless, 30));
  add_in_flight(&one, 100, &random);  // more than the ring has room for with the first 30
  EXPECT_EQ(one.cache.shareable(), 4);
  EXPECT_THROW(SequenceCache(one.cache, kEndless, 30), InternalError);
  EXPECT_THROW(one.cache.rewind(20), InternalError);
  EXPECT_NO_THROW(SequenceCache(one.cache, kEndless, 4));
  Marked two({}, &pool, window, kLayers, kEndless);
  write(&two, 2, &random);
  add_in_flight(&two, 100, &random);
  EXPECT_EQ(two.cache.shareable(), 2) << "nor sinks in flight";
}

// A page of sinks that a step in flight fills is not shared by two sequences that may both write
// it.
TEST(SharedPages, SinksThatAStepInFlightFillsAreCopiedForAnotherWriter) {
  const Window window{64, 60};
  const int64_t each = SequenceCache::memory_needed(window, kLayers, kEndless).pages[0];
  PagePool pool(kShape, 3 * each);
  std::mt19937 random(1);
  Marked one({}, &pool, window, kLayers, kEndless);
  write(&one, 30, &random);
  add_in_flight(&one, 40, &random);
  Marked other(first_marks(one, 30), one.cache, kEndless, 30);
  EXPECT_EQ(pool.spare_pages(), 0);
  write(&other, 60, &random);
  expect_own_rows(other);
  expect_own_rows(one);
}

TEST(SharedPages, AWholeSequenceTakesEveryTokenThatCountsAsLive) {
  const Window window{4, 60};
  for (int64_t length = 60; length < 260; ++length) {
    PagePool pool(kShape, 40);
    std::mt19937 random(1);
    Marked one({}, &pool, window, kLayers, kEndless);
    while (one.cache.length() < length) write(&one, 1, &random);
    const SequenceCache fork(one.cache, kEndless, length);
    const int64_t oldest = window.first(length - 1);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(fork.slot(layer, oldest).page, one.cache.slot(layer, oldest).page) << length;
    }
  }
}

TEST(SharedPages, AShortSequenceBeginsWithALongOne) {
  const Window window{4, 1000};
  PagePool pool(kShape, 200);
  std::mt19937 random(1);
  Marked one({}, &pool, window, kLayers, kEndless);
  write(&one, 500, &random);
  for (const int64_t count : {3, 4, 100, 132, 133, 260}) {
    Marked other(first_marks(one, count), one.cache, 261, count);
    write(&other, 261 - count, &random);
    expect_own_rows(other);
    expect_own_rows(one);
  }
}

TEST(SharedPages, RandomForksAndWritesNeverMeet) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&random](int64_t bound) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
    };
    const Window window{std::vector<int64_t>{0, 1, 4, 64, 70, 128}[below(6)], 1 + below(200)};
    // In every other run the second layer has a window of its own, narrower or wider; in every
    // third one pages of another shape.
    const PageShape other_shape = seed % 3 == 0 ? PageShape{2, 6} : kShape;
    const CacheLayers layers(std::vector<LayerMemory>{
        {.page = kShape}, {.own_window = seed % 2 * (1 + below(200)), .page = other_shape}});
    const MemoryAmount each = SequenceCache::memory_needed(window, layers, kEndless);
    PagePool pool(kShape, 6 * each.pages[0], /*poison=*/true);
    PagePool other_pool(other_shape, 6 * each.pages[1] + 1, /*poison=*/true);
    MemoryPools pools;
    pools.pages = {&pool, &other_pool};
    std::list<Marked> all;
    all.emplace_back(std::vector<uint32_t>(), pools, window, layers, kEndless);
    for (int step = 0; step < 300; ++step) {
      auto one = std::next(all.begin(), below(static_cast<int64_t>(all.size())));
      switch (below(10)) {
        case 0:
          if (each.fits_in(pools.free()) && one->in_flight.empty()) {
            all.emplace_back(one->marks, one->cache, kEndless, one->cache.length());
          }
          break;
        case 1:
          if (each.fits_in(pools.free())) {
            const int64_t count = below(one->cache.shareable() + 1);
            all.emplace_back(first_marks(*one, count), one->cache, kEndless, count);
          }
          break;
        case 2:
          if (all.size() > 1) all.erase(one);
          break;
        case 3: {
          const int64_t length = below(one->cache.length() + 1);
          if (!one->in_flight.empty()) break;
          if (one->cache.can_rewind(length) && one->cache.rewind(length)) {
            one->marks.resize(static_cast<size_t>(length));
          }
          break;
        }
        case 4:  // it has ended with a token in flight, which is discarded
          if (one->cache.in_flight() != 1) break;
          one->cache.drop_in_flight();
          one->in_flight.clear();
          one->marks.pop_back();
          break;
        default: {
          if (one->in_flight.size() == 2 || (!one->in_flight.empty() && below(2) == 0)) {
            commit_in_flight(&*one);
            break;
          }
          const int64_t most = 1 + below(below(4) == 0 ? 90 : 5);
          add_in_flight(&*one, piece_of(one->cache, most), &random);
        }
      }
      for (const Marked& other : all) expect_own_rows(other);
      if (HasFatalFailure()) return;
    }
    all.clear();
    EXPECT_EQ(pools.free(), pools.all());
  }
}

}  // namespace
}  // namespace sinkstream
