#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "common/errors.h"
#include "heap/heap.h"
#include "kernels/choose.h"

namespace sinkstream {
namespace {

constexpr int64_t kEndless = INT64_MAX;

std::vector<float> random_row(int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(random);
  return row;
}

double log_sum_exp(const std::vector<float>& row) {
  double sum = 0;
  for (const float x : row) sum += std::exp(double{x});
  return std::log(sum);
}

class SamplerTest : public testing::Test {
 protected:
  Sampled sample(const Sampler& sampler, const std::vector<float>& row, int64_t index = 0) {
    const auto vocab = static_cast<int64_t>(row.size());
    if (!scratch_ || scratch_->vocab != vocab) scratch_.emplace(vocab);
    return sampler.sample(row.data(), index, kernels_, launch_, *scratch_);
  }

  const Kernels kernels_ = choose_kernels("").kernels;
  ThreadPool pool_{1};
  const Launch launch_{&pool_};
  std::optional<SamplerScratch> scratch_;
};

TEST_F(SamplerTest, TemperatureZeroTakesTheMostProbable) {
  const std::vector<float> row = {1, 4, 3, 4};
  for (const double temperature : {0.0, 1e-320, 1e-45, 9.9e-6}) {
    const Sampler greedy({.temperature = temperature}, 4, 64, kEndless);
    for (int64_t index = 0; index < 50; ++index) EXPECT_EQ(sample(greedy, row, index).token, 1);
  }
}

TEST_F(SamplerTest, PenaltiesAndBiasActWithoutTemperature) {
  Sampler sampler({.temperature = 0, .presence_penalty = 2, .logit_bias = {{2, -10}}}, 0, 2,
                  kEndless);
  const std::vector<float> row = {5, 6, 7, 1};
  EXPECT_EQ(sample(sampler, row).token, 1);
  sampler.append(std::vector<int32_t>{1});
  EXPECT_EQ(sample(sampler, row).token, 0);
  sampler.append(std::vector<int32_t>{3, 3});  // 1 has left the window
  EXPECT_EQ(sample(sampler, row).token, 1);
}

TEST_F(SamplerTest, LogprobsAreTheModelsOwn) {
  const std::vector<float> row = random_row(1000, 1);
  Sampler sampler({.temperature = 0.3,
                   .top_k = 3,
                   .repetition_penalty = 1.7,
                   .logit_bias = {{5, 30}},
                   .logprobs = 20},
                  0, 64, kEndless);
  sampler.append(std::vector<int32_t>{1, 2, 5});
  const Sampled sampled = sample(sampler, row);
  EXPECT_EQ(sampled.token, 5);
  const double total = log_sum_exp(row);
  EXPECT_NEAR(sampled.logprob, row[5] - total, 1e-5);

  std::vector<int32_t> ids(row.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
  ASSERT_EQ(sampled.top.size(), 20u);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(sampled.top[i].id, ids[i]);
    EXPECT_NEAR(sampled.top[i].logprob, row[ids[i]] - total, 1e-5);
  }
}

TEST_F(SamplerTest, TopLogprobsOfEqualsListTheLowestIds) {
  const Sampler sampler({.logprobs = 3}, 0, 64, kEndless);
  const Sampled sampled = sample(sampler, {1, 2, 2, 3, 2, 2});
  ASSERT_EQ(sampled.top.size(), 3u);
  EXPECT_EQ(sampled.top[0].id, 3);
  EXPECT_EQ(sampled.top[1].id, 1);
  EXPECT_EQ(sampled.top[2].id, 2);
}

TEST_F(SamplerTest, TopLogprobsOfATinyVocabularyListAllOfIt) {
  const Sampler sampler({.logprobs = 20}, 0, 64, kEndless);
  EXPECT_EQ(sample(sampler, {1, 2, 3}).top.size(), 3u);
}

TEST_F(SamplerTest, TheSameSeedDrawsTheSameTokens) {
  const std::vector<float> row = random_row(1000, 2);
  const Sampler one({.seed = 7}, 0, 64, kEndless), same({.seed = 7}, 0, 64, kEndless),
      other({.seed = 8}, 0, 64, kEndless);
  int differences = 0;
  for (int64_t index = 0; index < 100; ++index) {
    const Sampled sampled = sample(one, row, index);
    EXPECT_EQ(sampled.token, sample(same, row, index).token);
    EXPECT_EQ(sampled.logprob, sample(same, row, index).logprob);
    differences += sampled.token != sample(other, row, index).token;
  }
  EXPECT_GT(differences, 50);
}

TEST_F(SamplerTest, DrawsFollowTheDistributionOfTheProcessedLogits) {
  const std::vector<float> row = {0, 1, 2, 3};
  const Sampler sampler({.temperature = 2, .seed = 3}, 0, 64, kEndless);
  std::map<int32_t, int> drawn;
  constexpr int kDraws = 20000;
  for (int64_t index = 0; index < kDraws; ++index) ++drawn[sample(sampler, row, index).token];
  double total = 0;
  for (const float x : row) total += std::exp(x / 2);
  for (int32_t id = 0; id < 4; ++id) {
    const double p = std::exp(row[id] / 2) / total;
    EXPECT_NEAR(drawn[id], kDraws * p, 4 * std::sqrt(kDraws * p * (1 - p))) << id;
  }
}

TEST_F(SamplerTest, NonFiniteLogitsNameTheIndexAndTheToken) {
  const Sampler sampler({}, 0, 64, kEndless);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> row = random_row(100, 3);
    row[42] = bad;
    try {
      sample(sampler, row, 123);
      FAIL() << bad;
    } catch (const NonFiniteLogits& error) {
      EXPECT_NE(std::string(error.what()).find("at index 123 the logit of token 42 is "),
                std::string::npos)
          << error.what();
    }
  }
}

TEST_F(SamplerTest, SaysThatEveryTokenIsForbidden) {
  const Sampler sampler({.logit_bias = {{0, -INFINITY}, {1, -INFINITY}}}, 0, 64, kEndless);
  try {
    sample(sampler, {1, 2}, 9);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(
        error.what(),
        "stream: `logit_bias` must leave a token to sample, but forbids all 2 at index 9.");
    EXPECT_EQ(error.param, "logit_bias");
  }
}

// Every combination of awkward values that validate() accepts samples an allowed token.
TEST_F(SamplerTest, AnyValidParametersDrawAnAllowedToken) {
  std::mt19937_64 random(5);
  const auto pick = [&](std::vector<double> values) { return values[random() % values.size()]; };
  for (int round = 0; round < 5000; ++round) {
    SamplingParams params = {
        .temperature = pick({0, -0.0, 1e-45, 1e-5, 0.7, 1, 100}),
        .top_k = static_cast<int64_t>(pick({0, 1, 5, 2147483647})),
        .top_p = pick({0x1p-1074, 1e-45, 1e-9, 0.5, 1 - 0x1p-53, 1}),
        .min_p = pick({0, 1e-45, 0.05, 1 - 0x1p-53, 1}),
        .repetition_penalty = pick({0.01, 1, 100}),
        .presence_penalty = pick({-100, -0.0, 0, 100}),
        .frequency_penalty = pick({-100, 0, 1e-45, 100}),
        .seed = random(),
    };
    const int64_t vocab = 1 + static_cast<int64_t>(random() % 70);
    for (int32_t id = 0; id + 1 < vocab; ++id) {
      if (random() % 3 == 0) params.logit_bias.push_back({id, -INFINITY});
      if (random() % 3 == 0 && (params.logit_bias.empty() || params.logit_bias.back().id != id)) {
        params.logit_bias.push_back({id, static_cast<float>(pick({-3e38, -0.0, 1e-45, 3e38}))});
      }
    }
    validate(params, vocab);
    std::vector<float> row(vocab);
    for (float& x : row) x = static_cast<float>(pick({-3e38, -5, -0.0, 0, 1e-45, 1, 2, 3e38}));
    Sampler sampler(params, 2, 5, kEndless);
    for (int i = 0; i < 12; ++i) {
      sampler.append(std::vector<int32_t>{static_cast<int32_t>(random() % vocab)});
    }
    const int32_t token = sample(sampler, row, round).token;
    ASSERT_GE(token, 0);
    ASSERT_LT(token, vocab);
    for (const TokenBias& entry : params.logit_bias) {
      ASSERT_FALSE(entry.id == token && entry.bias == -INFINITY) << "round " << round;
    }
  }
}

TEST_F(SamplerTest, AllocatesNothingPerToken) {
  const std::vector<float> row = random_row(49152, 6);
  SamplerScratch scratch(49152);
  Sampler sampler({.temperature = 0.7,
                   .top_k = 1000,
                   .top_p = 0.95,
                   .min_p = 0.01,
                   .repetition_penalty = 1.1,
                   .logit_bias = {{3, -INFINITY}}},
                  4, 100, kEndless);
  const int64_t before = allocations();
  for (int64_t index = 0; index < 300; ++index) {
    const int32_t token = sampler.sample(row.data(), index, kernels_, launch_, scratch).token;
    sampler.append({&token, 1});
  }
  EXPECT_EQ(allocations(), before);
  EXPECT_GT(before, 0) << "allocations are not counted";
}

TEST_F(SamplerTest, DoesNotDependOnTheThreadCount) {
  const std::vector<float> row = random_row(49152, 7);
  SamplerScratch scratch(49152);
  ThreadPool three(3);
  const Sampler sampler({.temperature = 0.9, .top_p = 0.95, .seed = 1}, 4, 100, kEndless);
  for (int64_t index = 0; index < 50; ++index) {
    const Sampled a = sampler.sample(row.data(), index, kernels_, launch_, scratch);
    const Sampled b = sampler.sample(row.data(), index, kernels_, {&three}, scratch);
    EXPECT_EQ(a.token, b.token);
    EXPECT_EQ(a.logprob, b.logprob);
  }
}

TEST_F(SamplerTest, AMaskForbidsTheTokensThatItDoesNotAllow) {
  const std::vector<float> row = random_row(100, 1);  // with a word that is not full
  scratch_.emplace(100);
  std::vector<uint32_t> mask(4, 0);
  for (const int32_t allowed : {3, 40, 99}) mask[allowed / 32] |= uint32_t{1} << allowed % 32;
  std::map<int32_t, int> drawn;
  for (int64_t index = 0; index < 300; ++index) {
    const Sampler sampler({.temperature = 2, .seed = 5}, 4, 64, kEndless);
    const Sampled sampled = sampler.sample(row.data(), index, kernels_, launch_, *scratch_, mask);
    ++drawn[sampled.token];
    EXPECT_FLOAT_EQ(sampled.logprob, static_cast<float>(row[sampled.token] - log_sum_exp(row)));
  }
  EXPECT_EQ(drawn.size(), 3u);
  for (const int32_t allowed : {3, 40, 99}) EXPECT_GT(drawn[allowed], 0);
}

TEST_F(SamplerTest, AMaskThatForbidsNothingChangesNoToken) {
  const std::vector<float> row = random_row(100, 2);
  scratch_.emplace(100);
  const std::vector<uint32_t> mask = {~0u, ~0u, ~0u, 0xFu};
  for (const double temperature : {0.0, 1.0, 1.7}) {
    const Sampler sampler({.temperature = temperature, .top_p = 0.9, .seed = 3}, 4, 64, kEndless);
    for (int64_t index = 0; index < 200; ++index) {
      const Sampled masked = sampler.sample(row.data(), index, kernels_, launch_, *scratch_, mask);
      const Sampled free = sample(sampler, row, index);
      EXPECT_EQ(masked.token, free.token);
      EXPECT_EQ(masked.logprob, free.logprob);
    }
  }
}

}  // namespace
}  // namespace sinkstream
