#include "cache/token_log.h"

#include <gtest/gtest.h>

#include <numeric>

namespace sinkstream {
namespace {

using Ids = std::vector<int32_t>;

// The tokens of index [begin, end), each of which has its index as its id.
Ids indices(int64_t begin, int64_t end) {
  Ids ids(static_cast<size_t>(end - begin));
  std::iota(ids.begin(), ids.end(), static_cast<int32_t>(begin));
  return ids;
}

Ids joined(Ids one, const Ids& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

TEST(TokenLog, KeepsTheSinksAndTheLastTokensHoweverLongTheText) {
  TokenLog log({.sinks = 3, .window = 5}, 20);
  for (int64_t i = 0; i < 200; ++i) {
    ASSERT_EQ(log.first_kept(), i <= 23 ? 0 : i - 20);
    ASSERT_EQ(log.kept(), i <= 23 ? indices(0, i) : joined(indices(0, 3), indices(i - 20, i)));
    ASSERT_EQ(log.live(), i <= 8 ? indices(0, i) : joined(indices(0, 3), indices(i - 5, i)));
    log.append(indices(i, i + 1));
  }
}

TEST(TokenLog, WhatWasOverwrittenIsNotKeptAfterGoingBack) {
  TokenLog log({.sinks = 3, .window = 5}, 20);
  log.append(indices(0, 100));
  log.rewind(90);
  EXPECT_EQ(log.first_kept(), 80);
  EXPECT_EQ(log.kept(), joined(indices(0, 3), indices(80, 90)));
  log.append(indices(90, 99));
  EXPECT_EQ(log.first_kept(), 80);
  EXPECT_EQ(log.live(), joined(indices(0, 3), indices(94, 99)));
}

TEST(TokenLog, HasAtLeastTheWindow) {
  TokenLog log({.sinks = 0, .window = 5}, 1);
  log.append(indices(0, 50));
  EXPECT_EQ(log.live(), indices(45, 50));
  EXPECT_EQ(log.kept(), indices(45, 50));
}

TEST(TokenLog, ARestoredOrCopiedOneGoesOnAlike) {
  for (const int64_t length : {2, 3, 8, 30, 64}) {
    TokenLog log({.sinks = 3, .window = 5}, 20), restored = {{.sinks = 3, .window = 5}, 20};
    log.append(indices(0, length));
    restored.append(indices(100, 150));
    restored.restore(log.kept(), length);
    TokenLog copied({.sinks = 3, .window = 5}, 20);
    copied.append(indices(100, 150));
    copied.copy_from(restored);
    for (TokenLog* other : {&restored, &copied}) {
      ASSERT_EQ(other->first_kept(), log.first_kept());
      ASSERT_EQ(other->kept(), log.kept());
      other->append(indices(length, length + 7));
      const Ids last = indices(std::max<int64_t>(length + 2, 3), length + 7);
      ASSERT_EQ(other->live(), joined(indices(0, 3), last)) << length;
    }
  }
}

TEST(TokenLog, ALiveOneAloneKnowsNothingBeforeIt) {
  TokenLog log({.sinks = 3, .window = 5}, 20);
  log.restore(joined(indices(0, 3), indices(95, 100)), 100);
  EXPECT_EQ(log.first_kept(), 95);
  EXPECT_EQ(log.length(), 100);
}

}  // namespace
}  // namespace sinkstream
