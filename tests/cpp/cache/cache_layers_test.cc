// Groups of layers: what each keeps of a sequence, and how a cache holds them together.
#include "cache/cache_layers.h"

#include <gtest/gtest.h>

#include <vector>

#include "cache/sequence_cache.h"
#include "common/errors.h"

namespace sinkstream {
namespace {

constexpr PageShape kShape{1, 2, DType::kFloat32};
constexpr int64_t kEndless = int64_t{1} << 60;

CacheLayers layers_with(const std::vector<int64_t>& own_windows) {
  std::vector<LayerMemory> layers;
  for (const int64_t own_window : own_windows) layers.push_back({.own_window = own_window});
  return CacheLayers(layers);
}

TEST(CacheLayers, GroupsLayersWithEqualWindowsInTheOrderOfTheFirst) {
  const CacheLayers layers = layers_with({32, 0, 32, 0, 500});
  ASSERT_EQ(layers.group_count(), 3);
  EXPECT_EQ(layers.groups()[0].own_window, 32);
  EXPECT_EQ(layers.groups()[0].layers, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(layers.groups()[1].layers, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(layers.layer_in_group(2).group, 0);
  EXPECT_EQ(layers.layer_in_group(2).layer, 1);
  EXPECT_EQ(layers.layer_in_group(4).group, 2);
  EXPECT_EQ(CacheLayers(3).group_count(), 1);
  EXPECT_EQ(CacheLayers(3).count(), 3);
  EXPECT_THROW(layers_with({-1}), InternalError);
  EXPECT_THROW(layers_with({}), InternalError);
}

TEST(CacheLayers, GroupsLayersOnlyIfTheirPagesHaveOneShapeToo) {
  const PageShape narrow{2, 4}, wide{1, 16};
  const CacheLayers layers(std::vector<LayerMemory>{{.own_window = 32, .page = narrow},
                                                    {.page = wide},
                                                    {.own_window = 32, .page = wide},
                                                    {.page = wide},
                                                    {.own_window = 32, .page = narrow}});
  ASSERT_EQ(layers.group_count(), 3);
  EXPECT_EQ(layers.groups()[0].layers, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(layers.groups()[1].layers, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(layers.groups()[2].layers, (std::vector<int64_t>{2}));
  ASSERT_EQ(layers.shapes().size(), 2u);
  EXPECT_EQ(layers.shapes()[0].head_dim, 4);
  EXPECT_EQ(layers.shapes()[1].head_dim, 16);
  EXPECT_EQ(layers.groups()[0].shape, 0u);
  EXPECT_EQ(layers.groups()[1].shape, 1u);
  EXPECT_EQ(layers.groups()[2].shape, 1u);
  std::vector<LayerMemory> many;
  for (int64_t heads = 1; heads <= 4; ++heads) many.push_back({.page = {heads, 4}});
  EXPECT_NO_THROW(CacheLayers{many});
  many.push_back({.page = {5, 4}});
  EXPECT_THROW(CacheLayers{many}, InternalError) << "more than MemoryAmount has room for";
}

TEST(CacheLayers, ALayerKeepsItsOwnWindowUnlessTheSequenceHasLess) {
  const CacheGroup group = {.own_window = 32, .layers = {0}};
  for (const int64_t w : {32, 100}) {
    EXPECT_EQ(group.window_of({4, w}).sinks, 0);
    EXPECT_EQ(group.window_of({4, w}).window, 32);
  }
  EXPECT_EQ(group.window_of({4, 31}).sinks, 4);
  EXPECT_EQ(group.window_of({4, 31}).window, 31);
}

TEST(CacheLayers, TheLargestGroupsTokensCount) {
  EXPECT_EQ(layers_with({32, 0}).main_group({4, 60}), 1);
  EXPECT_EQ(layers_with({32, 48}).main_group({4, 60}), 1);
  const Window own = layers_with({32, 48}).main_window({4, 60});
  EXPECT_EQ(own.sinks, 0);
  EXPECT_EQ(own.window, 48);
  const Window narrow = layers_with({32, 48}).main_window({4, 40});
  EXPECT_EQ(narrow.sinks, 4);
  EXPECT_EQ(narrow.window, 40);
}

TEST(CacheLayers, CountsEnoughPagesForEveryDivisionOfACapacity) {
  for (const std::vector<int64_t>& own : {std::vector<int64_t>{32, 0, 32}, {70}, {64, 90}}) {
    const CacheLayers layers = layers_with(own);
    const Window asked{4, 196};
    for (int64_t sinks = 0; sinks <= 100; ++sinks) {  // more would make W too narrow for 90
      const Window window{sinks, 200 - sinks};
      EXPECT_TRUE(
          SequenceCache::memory_needed(window, layers, kEndless).fits_in(layers.most_memory(asked)))
          << sinks;
    }
  }
  const Window asked{4, 196};
  EXPECT_EQ(layers_with({32, 0}).most_memory(asked).pages[0], 2 + asked.most_pages());
  const CacheLayers shapes(std::vector<LayerMemory>{
      {.own_window = 32, .page = {2, 4}}, {.page = {1, 16}}, {.own_window = 32, .page = {2, 4}}});
  EXPECT_EQ(shapes.most_memory(asked), (MemoryAmount{.pages = {4, asked.most_pages()}}));
}

// A sequence of layers with a window of 32, without one, and with 32 again.
struct Mixed {
  explicit Mixed(const Window& window)
      : layers(layers_with({32, 0, 32})),
        pool(kShape, 3 * SequenceCache::memory_needed(window, layers, kEndless).pages[0]),
        cache(&pool, window, layers, kEndless) {}

  CacheLayers layers;
  PagePool pool;
  SequenceCache cache;
};

TEST(CacheLayers, ReachesBackOverAWindowForEachLayer) {
  EXPECT_EQ(CacheLayers(3).reach({4, 64}), 1 + 3 * 63);
  EXPECT_EQ(CacheLayers(1).reach({4, 1}), 1);
  EXPECT_EQ(CacheLayers(1).first_to_read({4, 64}, 1000), 936);
  EXPECT_EQ(CacheLayers(1).first_to_read({4, 64}, 60), 4) << "the sinks are there";
  EXPECT_EQ(CacheLayers(1).first_to_read({4, 64}, 3), 0);
  const CacheLayers mixed(std::vector<LayerMemory>{{.own_window = 20}, {}, {.own_window = 20}});
  EXPECT_EQ(mixed.reach({4, 64}), 1 + 2 * 19 + 63);
  EXPECT_EQ(mixed.first_to_read({4, 64}, 1000), 1000 - 102);
  EXPECT_EQ(mixed.first_to_read({4, 64}, 60), 0) << "not all layers keep sinks";
}

TEST(CacheLayers, ReachesBackOverTheTokensOfAStateOrToTheBeginning) {
  const LayerMemory convolution = {.state_bytes = 8, .state_reach = 2};
  const CacheLayers convolved(std::vector<LayerMemory>{convolution, {}, convolution, {}});
  EXPECT_EQ(convolved.reach({4, 64}), 1 + 2 * 63 + 2 * 2);
  EXPECT_EQ(convolved.first_to_read({4, 64}, 1000), 1000 - 131);
  EXPECT_EQ(convolved.first_to_read({4, 64}, 136), 5);
  EXPECT_EQ(convolved.first_to_read({4, 64}, 135), 0) << "no state of the sinks is kept";
  const CacheLayers summed(std::vector<LayerMemory>{convolution, {}, {.state_bytes = 8}});
  EXPECT_EQ(summed.reach({4, 64}), CacheLayers::kNoReach);
  EXPECT_EQ(summed.first_to_read({4, 64}, 1000), 0);
}

TEST(GroupedCache, HoldsTheSinksOnlyWhereTheyAreKept) {
  const Mixed mixed({4, 100});
  EXPECT_EQ(mixed.cache.group(0).pages_per_layer(), 2);
  EXPECT_EQ(mixed.cache.group(1).pages_per_layer(), 1 + 3);
  EXPECT_EQ(mixed.cache.held().pages[0], 2 * 2 + 4);
  EXPECT_EQ(mixed.cache.layers(), 3);
  EXPECT_EQ(mixed.cache.slot(0, 3).row, 3);
  EXPECT_EQ(mixed.cache.slot(0, 4).row, 4);  // keys lie by their index
  EXPECT_EQ(mixed.cache.slot(1, 4).row, 0);  // after the sinks
  EXPECT_NE(mixed.cache.slot(0, 4).page, mixed.cache.slot(2, 4).page);
}

TEST(GroupedCache, CountsTheTokensOfTheLargestGroup) {
  Mixed mixed({4, 100});
  mixed.cache.advance(120);
  EXPECT_EQ(mixed.cache.live(), 104);
  EXPECT_EQ(mixed.cache.evicted(), 16);
}

TEST(GroupedCache, SharesNoPrefixOnceAnyLayerHasEvicted) {
  Mixed mixed({4, 100});
  mixed.cache.advance(31);
  EXPECT_EQ(mixed.cache.shareable(), 31);
  mixed.cache.advance(1);
  EXPECT_EQ(mixed.cache.shareable(), 0);  // not even the sinks: some layers keep none
  EXPECT_NO_THROW(SequenceCache(mixed.cache, kEndless, 32));
}

TEST(GroupedCache, IsRewoundOnlyToWhereEveryLayerHasWhatItSees) {
  Mixed mixed({4, 100});
  mixed.cache.advance(40);
  EXPECT_TRUE(mixed.cache.can_rewind(40));
  EXPECT_FALSE(mixed.cache.can_rewind(39));
}

// Two shapes, two pools: each group's pages come from its own and return there.
TEST(GroupedCache, TakesEachGroupsPagesFromThePoolOfItsShape) {
  const CacheLayers layers(std::vector<LayerMemory>{
      {.own_window = 32, .page = {2, 4}}, {.page = {1, 16}}, {.own_window = 32, .page = {2, 4}}});
  const Window window{4, 100};
  const MemoryAmount needed = SequenceCache::memory_needed(window, layers, kEndless);
  EXPECT_EQ(needed, (MemoryAmount{.pages = {4, 4}}));
  PagePool narrow({2, 4}, 8), wide({1, 16}, 7);
  MemoryPools pools;
  pools.pages = {&narrow, &wide};
  EXPECT_EQ(pools.all(), (MemoryAmount{.pages = {8, 7}}));
  {
    const SequenceCache cache(pools, window, layers, kEndless);
    EXPECT_EQ(cache.held(), needed);
    EXPECT_EQ(cache.bytes(), 4 * narrow.shape().bytes() + 4 * wide.shape().bytes());
    EXPECT_EQ(pools.free(), (MemoryAmount{.pages = {4, 3}}));
    EXPECT_EQ(cache.group_of(0).shape().head_dim, 4);
    EXPECT_EQ(cache.group_of(1).shape().head_dim, 16);
    EXPECT_EQ(cache.slot(1, 5).page, wide.page(cache.page_ids(cache.group(1))[1]));
    EXPECT_THROW(SequenceCache(pools, window, layers, kEndless), InternalError)
        << "one of the pools has too few";
    EXPECT_EQ(pools.free(), (MemoryAmount{.pages = {4, 3}})) << "and nothing is lost";
    EXPECT_THROW(SequenceCache(&narrow, window, layers, kEndless), InternalError);
  }
  EXPECT_EQ(pools.free(), pools.all());
}

TEST(GroupedCache, ACutEvictsFromEveryLayer) {
  Mixed mixed({4, 100});
  mixed.cache.advance(60);
  mixed.cache.cut(20);  // the rings begin at 29
  EXPECT_EQ(mixed.cache.group(0).window.first(60), 29);
  EXPECT_EQ(mixed.cache.group(1).window.first(60), 20);
  mixed.cache.cut(40);
  EXPECT_EQ(mixed.cache.group(0).window.first(60), 40);
  EXPECT_EQ(mixed.cache.group(1).window.first(60), 40);
  mixed.cache.restart();
  EXPECT_EQ(mixed.cache.group(0).window.begin, 0);
}

}  // namespace
}  // namespace sinkstream
