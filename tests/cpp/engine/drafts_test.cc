#include "engine/drafts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace sinkstream {
namespace {

TextTail learned(NgramPool* pool, std::span<const int32_t> text, uint64_t salt = 0) {
  TextTail tail(salt);
  for (const int32_t token : text) pool->learn(&tail, token);
  return tail;
}

std::vector<int32_t> guessed(const NgramPool& pool, std::span<const int32_t> text, int64_t most,
                             uint64_t salt = 0) {
  TextTail tail(salt);
  for (const int32_t token : text) tail.append(token);
  std::vector<Guess> guesses;
  pool.guess(tail, most, &guesses);
  std::vector<int32_t> tokens;
  for (const Guess& guess : guesses) tokens.push_back(guess.token);
  return tokens;
}

std::vector<int32_t> random_text(int64_t length, uint32_t seed, int32_t vocab = 50'000) {
  std::mt19937 random(seed);
  std::vector<int32_t> text(static_cast<size_t>(length));
  for (int32_t& token : text) token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  return text;
}

TEST(NgramPoolTest, KnowsHowATextWentOn) {
  NgramPool pool(1 << 20);
  const std::vector<int32_t> text = random_text(200, 1);
  learned(&pool, text);
  for (size_t at = 3; at < text.size(); ++at) {
    const std::vector<int32_t> rest(text.begin() + static_cast<int64_t>(at), text.end());
    const auto before = std::span(text).subspan(at - 3, 3);
    EXPECT_EQ(guessed(pool, before, 1000), rest) << at;
    EXPECT_EQ(std::ssize(guessed(pool, before, 5)), std::min<int64_t>(5, std::ssize(rest)));
  }
}

TEST(NgramPoolTest, GuessesNothingOfWhatItDoesNotKnow) {
  NgramPool pool(1 << 12);
  EXPECT_TRUE(guessed(pool, random_text(20, 1), 10).empty());
  const std::vector<int32_t> text = random_text(200, 1);
  learned(&pool, text);
  EXPECT_TRUE(guessed(pool, random_text(20, 2), 10).empty());
  EXPECT_TRUE(guessed(pool, std::span(text).first(1), 10).empty()) << "too short to look up";
  EXPECT_TRUE(guessed(NgramPool(0), text, 10).empty());
}

TEST(NgramPoolTest, TheLongerMatchWinsAndThenTheLatest) {
  NgramPool pool(1 << 12);
  const std::vector<int32_t> before = random_text(12, 3);
  std::vector<int32_t> text = before;
  text.push_back(7);
  learned(&pool, text);
  learned(&pool, std::vector<int32_t>{before[9], before[10], before[11], 8});
  EXPECT_EQ(guessed(pool, before, 1), std::vector<int32_t>{7}) << "after twelve tokens";
  EXPECT_EQ(guessed(pool, std::span(before).subspan(9), 1), std::vector<int32_t>{8})
      << "the latest";
}

TEST(NgramPoolTest, TextsOfDifferentSaltsLearnNothingFromEachOther) {
  NgramPool pool(1 << 20);
  const std::vector<int32_t> text = random_text(200, 1);
  learned(&pool, text, 1);
  EXPECT_EQ(guessed(pool, std::span(text).first(12), 8, 1).size(), 8u);
  EXPECT_TRUE(guessed(pool, std::span(text).first(12), 8, 2).empty());
}

TEST(NgramPoolTest, ForgetsWhatIsOverwrittenAndNeverGrows) {
  NgramPool pool(1 << 10);
  const int64_t bytes = pool.bytes();
  const std::vector<int32_t> first = random_text(100, 1);
  learned(&pool, first);
  learned(&pool, random_text(100'000, 2));
  int64_t known = 0;
  for (size_t at = 12; at < first.size(); ++at) {
    const std::vector<int32_t> found = guessed(pool, std::span(first).subspan(at - 12, 12), 1);
    known += !found.empty() && found.front() == first[at];
  }
  EXPECT_LT(known, 5);
  EXPECT_EQ(pool.bytes(), bytes);
  const std::vector<int32_t> last = random_text(100, 3);
  learned(&pool, last);
  EXPECT_GT(guessed(pool, std::span(last).first(12), 60).size(), 30u);
}

TEST(NgramPoolTest, AFullPoolGivesNothingToAnotherSalt) {
  NgramPool pool(1 << 10);
  learned(&pool, random_text(100'000, 1), 1);
  const std::vector<int32_t> other = random_text(20'000, 2);
  for (size_t at = 12; at < other.size(); ++at) {
    EXPECT_TRUE(guessed(pool, std::span(other).subspan(at - 12, 12), 1, 2).empty()) << at;
  }
}

TEST(AcceptanceTest, FollowsWhatWasRightLately) {
  Acceptance acceptance;
  const std::vector<Guess> one = {{.token = 0, .ngram = 2}};
  const double prior = acceptance.of(one.front());
  for (int i = 0; i < 200; ++i) acceptance.count(one, 0);
  EXPECT_LT(acceptance.of(one.front()), 0.05);
  for (int i = 0; i < 200; ++i) acceptance.count(one, 1);
  EXPECT_GT(acceptance.of(one.front()), 0.9) << "what is long ago is forgotten";
  EXPECT_EQ(acceptance.of({.token = 0, .ngram = 0}), Acceptance().of({.token = 0, .ngram = 0}));
  EXPECT_EQ(Acceptance().of(one.front()), prior);
}

TEST(AcceptanceTest, ANewSequenceExpectsWhatHoldsForAll) {
  const std::vector<Guess> one = {{.token = 0, .ngram = 2}};
  Acceptance all;
  Acceptance own(&all);
  EXPECT_EQ(own.of(one[0]), all.of(one[0]));
  for (int i = 0; i < 50; ++i) all.count(one, 0);
  EXPECT_EQ(own.of(one[0]), all.of(one[0]));
  for (int i = 0; i < 50; ++i) own.count(one, 1);
  EXPECT_GT(own.of(one[0]), 0.9);
}

TEST(AcceptanceTest, WhatFollowsAWrongGuessIsNotCounted) {
  Acceptance acceptance, expected;
  const std::vector<Guess> guesses = {{1, 2}, {2, 2}, {3, 2}, {4, 2}};
  acceptance.count(guesses, 1);  // one right, one wrong
  expected.count(std::span(guesses).first(1), 1);
  expected.count(std::span(guesses).first(1), 0);
  EXPECT_EQ(acceptance.of(guesses[0]), expected.of(guesses[0]));
}

StepPrices priced(double fixed, double row) {
  StepPrices prices;
  for (int round = 0; round < 50; ++round) {
    for (const int64_t rows : {1, 2, 4, 8, 16, 32}) {
      prices.learn(rows, fixed + row * static_cast<double>(rows));
    }
  }
  return prices;
}

TEST(StepPricesTest, LearnsWhatStepsTake) {
  const StepPrices prices = priced(0.009, 0.001);
  for (const int64_t rows : {1, 2, 3, 6, 12, 24, 32}) {
    const double wanted = (9 + static_cast<double>(rows)) / 1000;
    EXPECT_NEAR(prices.of(rows), wanted, 0.1 * wanted) << rows;
  }
}

TEST(StepPricesTest, RisesWithTheRowsWhateverIsKnown) {
  StepPrices prices;
  const auto expect_rising = [&] {
    for (int64_t rows = 1; rows < 200; ++rows) EXPECT_GT(prices.of(rows + 1), prices.of(rows));
  };
  expect_rising();
  prices.learn(5, 0.02);  // no step of one row is known
  expect_rising();
  prices.learn(1, 0.01);
  expect_rising();
}

TEST(StepPricesTest, AJumpIsPaidByTheRowsThatCauseIt) {
  StepPrices prices;
  for (int i = 0; i < 20; ++i) {
    prices.learn(1, 0.01);
    prices.learn(32, 0.04);
    prices.learn(35, 0.05);
  }
  EXPECT_NEAR(prices.of(32), 0.04, 0.003);
  EXPECT_NEAR(prices.of(35), 0.05, 0.003);
}

TEST(StepPricesTest, ASlowMomentIsNoPrice) {
  StepPrices prices = priced(0.009, 0.001);
  prices.learn(8, 10);
  EXPECT_LT(prices.of(8) / prices.of(1), 2.2);
  prices.learn(8, 0);  // a clock that stands still
  EXPECT_LT(prices.of(8) / prices.of(1), 2.2);
}

TEST(StepPricesTest, WhatIsKnownFollowsLongerContexts) {
  StepPrices prices = priced(0.009, 0.001);
  const double before = prices.of(8) / prices.of(1);
  for (int i = 0; i < 200; ++i) prices.learn(8, 2 * (0.009 + 0.008));
  EXPECT_NEAR(prices.of(8) / prices.of(1), before, 0.2 * before);
}

TEST(StepPricesTest, SeveralRowsAreComparedWithoutAStepOfOne) {
  StepPrices prices;
  for (int i = 0; i < 20; ++i) {
    prices.learn(4, 0.01);
    prices.learn(8, 0.02);
  }
  EXPECT_NEAR(prices.of(8) / prices.of(4), 2, 0.1);
}

// The choice by trying all, as the definition says.
int64_t best_count(double share, int64_t most, int64_t rows, const StepPrices& prices) {
  int64_t best = 0;
  double best_rate = 0;
  for (int64_t k = 0; k <= most; ++k) {
    const double tokens = static_cast<double>(rows) +
                          share * (1 - std::pow(share, static_cast<double>(k))) / (1 - share);
    const double rate = tokens / prices.of(rows + k);
    if (rate <= best_rate) continue;
    best = k;
    best_rate = rate;
  }
  return best;
}

TEST(DraftsWorthTest, IsTheCountThatMakesTokensComeFastest) {
  const std::vector<Guess> guesses(15, Guess{.token = 0, .ngram = 2});
  for (const double row : {0.0001, 0.001, 0.003, 0.009}) {
    const StepPrices prices = priced(0.01 - row, row);
    for (const int rights : {0, 1, 3, 10, 40}) {
      Acceptance acceptance;
      for (int i = 0; i < 40; ++i) acceptance.count(std::span(guesses).first(1), i < rights);
      for (const int64_t rows : {1, 4, 16}) {
        StepValue step{.rows = rows, .tokens = static_cast<double>(rows), .most_price = INFINITY};
        const int64_t found = drafts_worth(guesses, acceptance, prices, &step);
        EXPECT_EQ(found, best_count(acceptance.of(guesses[0]), 15, rows, prices));
        EXPECT_EQ(step.rows, rows + found);
        EXPECT_GE(step.tokens, static_cast<double>(rows));
      }
    }
  }
}

TEST(DraftsWorthTest, NeverCostsMoreThanIsAllowed) {
  const std::vector<Guess> guesses(31, Guess{.token = 0, .ngram = 0});
  const StepPrices prices = priced(0.009, 0.001);
  for (const double most : {1.0, 1.1, 1.5, 3.0}) {
    StepValue step{.rows = 2, .tokens = 2, .most_price = most * prices.of(2)};
    const int64_t found = drafts_worth(guesses, Acceptance(), prices, &step);
    EXPECT_LE(prices.of(2 + found), most * prices.of(2));
    if (most > 1 && most < 2) EXPECT_GT(prices.of(2 + found + 1), most * prices.of(2));
  }
}

}  // namespace
}  // namespace sinkstream
