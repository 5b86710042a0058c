#include "sampling/penalty_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "common/errors.h"

namespace sinkstream {
namespace {

using Counts = std::map<int32_t, int32_t>;

Counts counts_of(const PenaltyRing& ring) {
  Counts counts;
  for (const TokenCount& entry : ring.counts()) {
    EXPECT_GE(entry.count, 1);
    EXPECT_TRUE(counts.emplace(entry.id, entry.count).second) << entry.id << " is listed twice";
  }
  return counts;
}

// The definition: keeps all tokens in a list and counts the live ones anew.
Counts live_counts(const std::vector<int32_t>& tokens, int64_t sinks, int64_t window) {
  Counts counts;
  const int64_t length = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < std::min(sinks, length); ++i) ++counts[tokens[i]];
  for (int64_t i = std::max(sinks, length - window); i < length; ++i) ++counts[tokens[i]];
  return counts;
}

TEST(PenaltyRing, CountsSinksAndTheLastWindow) {
  PenaltyRing ring(2, 3, INT64_MAX);
  for (const int32_t id : {9, 8, 1, 2, 2, 3, 9}) ring.append(id);
  EXPECT_EQ(counts_of(ring), (Counts{{9, 2}, {8, 1}, {2, 1}, {3, 1}}));
  EXPECT_EQ(ring.length(), 7);
}

TEST(PenaltyRing, EqualsAPlainListOver100000Tokens) {
  std::mt19937 random(1);
  for (const auto& [sinks, window] : {std::pair{0, 1}, {0, 7}, {1, 1}, {4, 60}, {64, 64}}) {
    SCOPED_TRACE(cat("sinks ", sinks, ", window ", window));
    PenaltyRing ring(sinks, window, INT64_MAX);
    std::vector<int32_t> tokens;
    for (int step = 0; step < 20000; ++step) {
      // A few ids repeat often; ids far apart share a bucket now and then.
      const int32_t id = static_cast<int32_t>(random() % 3 == 0 ? random() % 5 : random() % 200000);
      tokens.push_back(id);
      ring.append(id);
      ASSERT_EQ(ring.length(), static_cast<int64_t>(tokens.size()));
      if (step > 1000 && step % 7 != 0) continue;  // the list is slow
      ASSERT_EQ(counts_of(ring), live_counts(tokens, sinks, window)) << "step " << step;
    }
  }
}

TEST(PenaltyRing, NeverMovesItsMemory) {
  PenaltyRing ring(4, 1000, INT64_MAX);
  const TokenCount* before = ring.counts().data();
  for (int32_t i = 0; i < 100000; ++i) ring.append(i);
  EXPECT_EQ(ring.counts().data(), before);
  EXPECT_EQ(ring.counts().size(), 1004u);
}

TEST(PenaltyRing, HoldsAShortSequenceInAWideWindow) {
  PenaltyRing ring(int64_t{1} << 40, int64_t{1} << 40, 3);
  for (const int32_t id : {5, 6, 5}) ring.append(id);
  EXPECT_EQ(counts_of(ring), (Counts{{5, 2}, {6, 1}}));
}

TEST(PenaltyRing, RefusesMoreThanItsMaximalLength) {
  PenaltyRing ring(1, 8, 3);
  for (int32_t id = 0; id < 3; ++id) ring.append(id);
  EXPECT_THROW(ring.append(3), InternalError);
}

}  // namespace
}  // namespace sinkstream
