// Slots of states and their lanes: each lane holds what a step wrote for the length that it stands
// for, and nothing that is free can be read.
#include "cache/state_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "cache/snapshot.h"
#include "common/errors.h"

namespace sinkstream {
namespace {

constexpr int64_t kEndless = int64_t{1} << 60;
constexpr int64_t kLanes = StatePool::lanes_for(2);

// One layer with pages between two with states, of 8 and of 24 bytes.
CacheLayers hybrid() {
  return CacheLayers(
      std::vector<LayerMemory>{{.state_bytes = 8}, {.page = {1, 2}}, {.state_bytes = 24}});
}

// What a layer's state is after these tokens: their sum, each times its number.
int64_t state_after(const std::vector<int64_t>& tokens, int64_t layer) {
  int64_t state = layer;
  for (const int64_t token : tokens) state = state * 31 + token + 1;
  return tokens.empty() ? 0 : state;
}

int64_t number_at(const std::byte* at) {
  int64_t number;
  std::memcpy(&number, at, sizeof(number));
  return number;
}

// A sequence with states, and the tokens it was given as a plain list.
struct Hybrid {
  Hybrid(int64_t slots, int64_t max_length = kEndless) : Hybrid() {
    pools_owned = std::make_shared<Pools>(slots);
    cache.emplace(pools_owned->pools, Window{2, 70}, hybrid(), max_length);
  }
  Hybrid(const Hybrid& other, int64_t count) : Hybrid() {
    pools_owned = other.pools_owned;
    cache.emplace(*other.cache, kEndless, count);
    tokens = {other.tokens.begin(), other.tokens.begin() + count};
  }

  // Launches a step: reads the state of each layer and writes the next one.
  void launch(int64_t count) {
    const int64_t index = cache->next_index();
    const std::vector<int64_t> before = tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(next_token++);
    for (const int64_t layer : {0, 2}) {
      const SequenceCache::StateLanes lanes = cache->state(layer, index);
      ASSERT_EQ(number_at(lanes.read), state_after(before, layer))
          << "layer " << layer << " after " << index << " tokens";
      const int64_t state = state_after(tokens, layer);
      std::memcpy(lanes.write, &state, sizeof(state));
    }
    cache->add_in_flight(count);
  }
  void append(int64_t count) {
    launch(count);
    cache->commit_in_flight(count);
    expect_states(cache->length());
  }
  void drop() {
    cache->drop_in_flight();
    tokens.resize(static_cast<size_t>(cache->length()));
  }
  bool rewind(int64_t length) {
    if (!cache->can_rewind(length) || !cache->rewind(length)) return false;
    tokens.resize(static_cast<size_t>(length));
    return true;
  }

  // The lane that stands for `index` holds the states after exactly those tokens.
  void expect_states(int64_t index) const {
    const std::vector<int64_t> seen(tokens.begin(), tokens.begin() + index);
    const std::byte* const lane = cache->states()->lane_of(index);
    for (const int64_t number : {0, 1}) {
      const StateExtent& extent = cache->state_extents()[static_cast<size_t>(number)];
      ASSERT_EQ(number_at(lane + extent.offset), state_after(seen, 2 * number))
          << "layer " << 2 * number << " after " << index << " tokens";
    }
  }

  struct Pools {
    explicit Pools(int64_t slots)
        : pages({1, 2}, 4 * slots), states(hybrid().lane_bytes(), kLanes, slots, /*poison=*/true) {
      pools.pages = {&pages};
      pools.states = &states;
    }
    PagePool pages;
    StatePool states;
    MemoryPools pools;
  };
  StatePool& states() const { return pools_owned->states; }

  std::shared_ptr<Pools> pools_owned;  // before `cache`, which returns its memory to it
  std::optional<SequenceCache> cache;
  std::vector<int64_t> tokens;  // those in flight included
  int64_t next_token = 1000;

 private:
  Hybrid() = default;
};

TEST(CacheLayers, LayersWithStatesAreInNoGroup) {
  const CacheLayers layers = hybrid();
  EXPECT_EQ(layers.count(), 3);
  EXPECT_EQ(layers.group_count(), 1);
  EXPECT_EQ(layers.groups()[0].layers, (std::vector<int64_t>{1}));
  EXPECT_EQ(layers.states(), (std::vector<StateExtent>{{0, 8}, {64, 24}}));
  EXPECT_EQ(layers.lane_bytes(), 128);
  EXPECT_EQ(layers.most_memory({2, 70}).states, 1);
  EXPECT_EQ(SequenceCache::memory_needed({2, 70}, layers, kEndless),
            (MemoryAmount{.pages = {4}, .states = 1}));
  EXPECT_EQ(SequenceCache::memory_saved({64, 70}, layers, 64), (MemoryAmount{.pages = {1}}))
      << "states are copied, never shared";
  EXPECT_FALSE(CacheLayers(2).has_states());
  EXPECT_THROW(CacheLayers(std::vector<LayerMemory>{{.state_bytes = 8}}), InternalError);
}

TEST(StateSlots, AreTakenExactlyAndReturned) {
  Hybrid one(2);
  EXPECT_EQ(one.states().free_slots(), 1);
  EXPECT_EQ(one.cache->held(), (MemoryAmount{.pages = {4}, .states = 1}));
  EXPECT_EQ(one.cache->bytes(), 4 * 64 * 2 * 2 * 4 + kLanes * 128);
  {
    const Hybrid fork(one, 0);
    EXPECT_EQ(one.states().free_slots(), 0);
    EXPECT_FALSE((MemoryAmount{.states = 1}).fits_in(one.pools_owned->pools.free()));
    EXPECT_THROW(Hybrid(one, 0), InternalError);
  }
  EXPECT_EQ(one.states().free_slots(), 1);
}

TEST(StateSlots, ANewOwnerBeginsWithZeros) {
  for (const bool poison : {false, true}) {
    StatePool pool(64, kLanes, 1, poison);
    {
      const StateSlot first(&pool);
      std::memset(first.lane_of(0), 7, 64);
    }
    const StateSlot second(&pool);
    for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(second.lane_of(0)[i], std::byte{0});
  }
}

TEST(StateSlots, HoldNaNWhereTheyAreFreeIfThePoolPoisons) {
  StatePool pool(64, kLanes, 1, /*poison=*/true);
  const auto is_nan = [&](int64_t lane) { return pool.lane(0, lane)[5] == std::byte{0xff}; };
  for (int64_t lane = 0; lane < kLanes; ++lane) EXPECT_TRUE(is_nan(lane));
  {
    StateSlot slot(&pool);
    EXPECT_FALSE(is_nan(0));
    std::memset(slot.free_lane(), 3, 64);
    slot.add(1);
    slot.commit(1);
    EXPECT_TRUE(is_nan(0)) << "no longer the head";
    EXPECT_FALSE(is_nan(1));
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) EXPECT_TRUE(is_nan(lane)) << "no sequence's";
}

TEST(StateSlots, AStepReadsWhatThePreviousOneWroteEvenInFlight) {
  Hybrid one(1);
  one.append(5);
  for (int i = 0; i < 20; ++i) {
    one.launch(1);
    one.launch(1 + i % 3);
    one.cache->commit_in_flight(1);
    one.cache->commit_in_flight(1 + i % 3);
    one.expect_states(one.cache->length());
  }
}

TEST(StateSlots, ADroppedStepChangesNothing) {
  Hybrid one(1);
  one.append(5);
  one.launch(1);
  one.launch(1);
  one.cache->commit_in_flight(1);
  one.drop();
  EXPECT_EQ(one.cache->length(), 6);
  one.expect_states(6);
  EXPECT_FALSE(one.cache->states()->stands_for(7)) << "the dropped token's lane is free";
  one.append(1);  // another token at the index of the dropped one
  one.append(3);
  EXPECT_THROW(one.cache->state(0, 6), InternalError) << "it has passed";
}

TEST(StateSlots, AreRewoundToTheKeptLaneOnly) {
  Hybrid one(1);
  one.append(5);
  one.cache->keep_states();
  for (int i = 0; i < 10; ++i) one.append(2);
  EXPECT_FALSE(one.cache->can_rewind(7)) << "no lane stands for it";
  EXPECT_TRUE(one.cache->can_rewind(25));
  ASSERT_TRUE(one.rewind(5));
  one.expect_states(5);
  one.append(4);
  ASSERT_TRUE(one.rewind(5)) << "the lane is still kept";
  one.append(4);
  one.cache->keep_states();
  one.append(1);
  EXPECT_FALSE(one.cache->can_rewind(5)) << "another one is";
  ASSERT_TRUE(one.rewind(9));
  one.expect_states(9);
}

TEST(StateSlots, HaveTheKeptLaneAndOneForEveryStepInFlight) {
  Hybrid one(1);
  one.append(5);
  one.cache->keep_states();
  one.append(1);
  one.launch(1);
  one.launch(1);
  EXPECT_THROW(one.launch(1), InternalError) << "a third one";
}

TEST(StateSlots, APrefixIsSharedOnlyWhereALaneStandsForIt) {
  Hybrid one(3);
  one.append(10);
  one.cache->keep_states();
  one.append(20);
  EXPECT_EQ(one.cache->shareable(), 30);
  EXPECT_EQ(one.cache->shareable(30), 30);
  EXPECT_EQ(one.cache->shareable(29), 10);
  EXPECT_EQ(one.cache->shareable(9), 0);
  EXPECT_THROW(Hybrid(one, 29), InternalError);
  Hybrid early(one, 10), late(one, 30);
  early.append(7);
  late.append(7);
  one.append(7);
  EXPECT_FALSE(early.cache->can_rewind(9)) << "a fork keeps no lane";
}

TEST(StateSlots, AForkAtAStepInFlightHasOnlyWhatWasDelivered) {
  Hybrid one(2);
  one.append(10);
  one.launch(1);
  Hybrid fork(one, 10);
  fork.append(2);
  one.cache->commit_in_flight(1);
  one.expect_states(11);
}

TEST(StateSlots, CutsAndJumpsLeaveThemAndARestartEmptiesThem) {
  Hybrid one(1);
  one.append(100);
  one.cache->cut(90);
  one.expect_states(100);
  one.append(1);
  one.cache->restart();
  one.tokens.clear();
  one.expect_states(0);
  one.append(3);
  one.cache->jump(1000);
  EXPECT_EQ(number_at(one.cache->state(0, 1000).read), state_after(one.tokens, 0));
}

TEST(StateSlots, AreCopiedWithTheTokens) {
  Hybrid one(1), other(1);
  one.append(10);
  other.append(3);
  other.cache->copy_from(*one.cache);
  other.tokens = one.tokens;
  other.expect_states(10);
  other.append(2);
  one.append(2);
}

TEST(StateSlots, MoveThroughASnapshot) {
  Hybrid one(1);
  one.append(100);
  const SnapshotShape shape = snapshot_shape(*one.cache);
  EXPECT_EQ(shape.state_bytes(), 8 + 24);
  std::vector<std::byte> keys_values(shape.bytes()), states(shape.state_bytes());
  snapshot(*one.cache, keys_values.data(), nullptr, states.data());
  Hybrid other(1, 200);
  restore(&*other.cache, state_of(*one.cache), keys_values.data(), nullptr, states.data());
  other.tokens = one.tokens;
  other.expect_states(100);
  other.append(2);
}

// Random calls against a plain list of tokens.
TEST(StateSlots, RandomStepsForksAndRewindsKeepEveryState) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&random](int64_t bound) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
    };
    std::list<Hybrid> all;
    all.emplace_back(4);
    std::map<Hybrid*, std::deque<int64_t>> flights;
    for (int step = 0; step < 300; ++step) {
      auto at = std::next(all.begin(), below(std::ssize(all)));
      Hybrid& one = *at;
      std::deque<int64_t>& flight = flights[&one];
      switch (below(8)) {
        case 0:
          if (flight.empty()) one.cache->keep_states();
          break;
        case 1:
          if (flight.empty()) one.rewind(below(one.cache->length() + 1));
          break;
        case 2:
          if (one.states().free_slots() == 0) break;
          all.emplace_back(one, one.cache->shareable(below(one.cache->shareable() + 1)));
          all.back().next_token = 1000 * step;
          break;
        case 3:
          if (all.size() == 1) break;
          flights.erase(&one);
          all.erase(at);
          continue;
        case 4:
          one.drop();
          flight.clear();
          break;
        default:
          if (flight.size() == 2 || (!flight.empty() && below(2) == 0)) {
            one.cache->commit_in_flight(flight.front());
            flight.pop_front();
          } else {
            flight.push_back(1 + below(5));
            one.launch(flight.back());
          }
      }
      for (const Hybrid& each : all) each.expect_states(each.cache->length());
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace sinkstream
