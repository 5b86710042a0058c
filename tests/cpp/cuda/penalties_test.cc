#include "kernels/cuda/sampling/penalties.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "common/errors.h"
#include "cuda/sampling_fixture.h"
#include "kernels/cuda/sampling/penalties.cuh"

namespace sinkstream::cuda {
namespace {

using Counts = std::map<int32_t, int32_t>;

Counts counts_of(std::span<const TokenCount> list) {
  Counts counts;
  for (const TokenCount& entry : list) {
    EXPECT_GE(entry.count, 1);
    EXPECT_TRUE(counts.emplace(entry.id, entry.count).second) << entry.id << " stands twice";
  }
  return counts;
}

// Three tables of one capacity; the middle one is tested.
class Tables {
 public:
  explicit Tables(int64_t capacity)
      : memory_(3 * PenaltyLayout{capacity}.bytes()), tables_{memory_.get(), capacity} {}

  void reset(int64_t sinks, int64_t window) { penalties_reset({tables_, 1, sinks, window}, {}); }
  void append(const std::vector<int32_t>& ids) {
    penalties_append({tables_, 1, ids.data(), static_cast<int64_t>(ids.size())}, {});
  }

  int64_t length() const { return head().length; }
  Counts counts() const {
    const auto* list = reinterpret_cast<const TokenCount*>(table() + layout().counts_offset());
    return counts_of({list, static_cast<size_t>(head().distinct)});
  }
  // Whether the neighbours were not written.
  bool neighbours_are_intact() const {
    return memory_.is_untouched(0, layout().bytes()) &&
           memory_.is_untouched(2 * layout().bytes(), layout().bytes());
  }
  PenaltyTables tables() const { return tables_; }

 private:
  PenaltyLayout layout() const { return {tables_.capacity}; }
  const std::byte* table() const { return memory_.get() + layout().bytes(); }
  const PenaltyHead& head() const { return *reinterpret_cast<const PenaltyHead*>(table()); }

  DeviceArray<std::byte> memory_;
  PenaltyTables tables_;
};

// Appends one token as sample.cu does.
__global__ void append_one_kernel(PenaltyTables tables, int32_t id) {
  wait_for_previous();
  if (threadIdx.x == 0) append_token(penalty_table(tables, 1), id);
}

void draw(const Tables& tables, int32_t id) {
  ASSERT_EQ(launch(append_one_kernel, 1, 32, 0, {}, tables.tables(), id), kSuccess);
}

TEST(CudaPenalties, EqualThePenaltyRingAtEveryStep) {
  emulator::in_orders_of_run([](const emulator::Order& order) {
    for (const auto& [sinks, window] : {std::pair{0, 1}, {0, 7}, {1, 1}, {4, 30}, {3, 2}}) {
      SCOPED_TRACE(cat(order.name, ", sinks ", sinks, ", window ", window));
      std::mt19937 random(static_cast<unsigned>(sinks + window));
      Tables tables(sinks + window + window % 2);  // exactly enough, or more
      tables.reset(sinks, window);
      PenaltyRing ring(sinks, window, INT64_MAX);
      for (int step = 0; step < 2000; ++step) {
        // A few ids repeat often; others collide now and then.
        const auto any = [&] {
          return static_cast<int32_t>(random() % 3 == 0 ? random() % 5 : random() % 200000);
        };
        if (random() % 50 == 0) {  // many at once, up to several windows
          std::vector<int32_t> ids(1 + random() % (3 * window + sinks));
          for (int32_t& id : ids) id = any();
          tables.append(ids);
          for (const int32_t id : ids) ring.append(id);
        } else {
          const int32_t id = any();
          draw(tables, id);
          ring.append(id);
        }
        ASSERT_EQ(tables.length(), ring.length());
        ASSERT_EQ(tables.counts(), counts_of(ring.counts())) << "step " << step;
      }
      ASSERT_TRUE(tables.neighbours_are_intact());
    }
  });
}

TEST(CudaPenalties, AResetForgetsEverything) {
  Tables tables(8);
  tables.reset(2, 6);
  tables.append({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  tables.reset(0, 3);
  EXPECT_EQ(tables.length(), 0);
  EXPECT_EQ(tables.counts(), Counts{});
  tables.append({4, 4});
  draw(tables, 5);
  draw(tables, 6);
  EXPECT_EQ(tables.counts(), (Counts{{4, 1}, {5, 1}, {6, 1}}));
}

TEST(CudaPenalties, CountAPromptLongerThanTheBlockOfThreads) {
  std::mt19937 random(3);
  std::vector<int32_t> ids(5000);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 900);
  emulator::in_orders_of_run([&](const emulator::Order& order) {
    Tables tables(1300);
    tables.reset(100, 1200);
    PenaltyRing ring(100, 1200, INT64_MAX);
    const std::vector<int32_t> beginning(ids.begin(), ids.begin() + 1100);
    tables.append(beginning);
    for (const int32_t id : beginning) ring.append(id);
    EXPECT_EQ(tables.counts(), counts_of(ring.counts())) << order.name;
    tables.append(ids);
    for (const int32_t id : ids) ring.append(id);
    EXPECT_EQ(tables.counts(), counts_of(ring.counts())) << order.name;
  });
}

}  // namespace
}  // namespace sinkstream::cuda
