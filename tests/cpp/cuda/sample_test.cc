#include "kernels/cuda/sampling/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <functional>
#include <set>

#include "common/errors.h"
#include "cuda/sampling_fixture.h"

namespace sinkstream::cuda {
namespace {

// Probabilities are compared within this: Note [Weights are integers].
constexpr double kTolerance = 1e-6;

// GPU kernels and the reference treat denormals as zeros, so the tests do too.
class CudaSample : public testing::Test {
  const FlushDenormals flush_;
};

struct Row {
  std::string name;
  std::vector<float> logits;
  std::vector<TokenBias> bias = {};
};

// One row per way to go wrong.
std::vector<Row> rows_of(int64_t vocab) {
  std::vector<Row> rows = {{"spread", normal_row(vocab, 5, 1)},
                           {"flat", normal_row(vocab, 0.01f, 2)},
                           {"equal", std::vector<float>(vocab, 3)},
                           {"huge", normal_row(vocab, 1e37f, 3)}};
  Row ties{"ties", normal_row(vocab, 2, 4)};
  for (float& x : ties.logits) x = std::round(x * 2) / 2;
  rows.push_back(ties);
  Row outlier{"outlier", normal_row(vocab, 2, 5)};
  outlier.logits[vocab / 3] = FLT_MAX;
  outlier.logits[vocab / 2] = -FLT_MAX;
  rows.push_back(outlier);
  Row masked{"masked", normal_row(vocab, 3, 6)};
  for (int64_t i = 0; i < vocab; ++i) {
    if (i % 3 != vocab % 3) masked.bias.push_back({static_cast<int32_t>(i), -INFINITY});
  }
  if (vocab > 2) rows.push_back(masked);
  Row geometric{"geometric", std::vector<float>(vocab)};
  for (int64_t i = 0; i < vocab; ++i) geometric.logits[i] = std::ldexp(1.0f, -(i % 140));
  rows.push_back(geometric);
  Row zeros{"zeros", std::vector<float>(vocab)};
  for (int64_t i = 0; i < vocab; ++i) zeros.logits[i] = i % 2 ? -0.0f : i % 5 ? 0.0f : 1e-45f;
  rows.push_back(zeros);
  return rows;
}

struct Filter {
  int64_t top_k;
  double top_p;
  double min_p;
};

// Each filter alone, in pairs, all three, and at the ends of its range.
std::vector<Filter> filters_of(int64_t vocab) {
  return {{0, 1, 0},
          {0, 1, 0.05},
          {0, 0.95, 0},
          {0, 0.95, 0.05},
          {0, 1e-6, 0},
          {1, 1, 0},
          {1, 0.95, 0.05},
          {40, 1, 0},
          {40, 0.95, 0},
          {40, 0.95, 0.05},
          {vocab - 1, 1, 0.05},
          {vocab - 1, 0.95, 0},
          {vocab, 0.999999, 0},
          {int64_t{INT32_MAX}, 0.5, 1e-30},
          {2, 1, 0.9},
          {0, 0.5, 1}};
}

SamplingCase case_of(const Row& row, const Filter& filter, uint64_t seed) {
  SamplingCase c;
  c.logits = row.logits;
  c.bias = row.bias;
  c.params.top_k = filter.top_k;
  c.params.top_p = filter.top_p;
  c.params.seed = seed;
  c.min_p = filter.min_p;
  c.index = static_cast<int64_t>(seed % 100);
  return c;
}

std::string text_of(const Row& row, const Filter& filter) {
  return cat("vocab ", row.logits.size(), ", row ", row.name, ", top_k ", filter.top_k, ", top_p ",
             filter.top_p, ", min_p ", filter.min_p);
}

std::set<int64_t> kept(const SamplingAnswer& answer, float threshold) {
  std::set<int64_t> ids;
  for (size_t id = 0; id < answer.values.size(); ++id) {
    if (answer.values[id] >= threshold) ids.insert(static_cast<int64_t>(id));
  }
  return ids;
}

// Whether top-p may stop at either value: among what top-k keeps, the probability from the higher
// one up equals p, up to rounding.
bool top_p_may_stop_at_either(const SamplingAnswer& answer, const Filter& filter, float a,
                              float b) {
  std::vector<float> falling = answer.values;
  std::sort(falling.begin(), falling.end(), std::greater<>());
  float least = -FLT_MAX;
  if (filter.top_k > 0 && filter.top_k < static_cast<int64_t>(falling.size())) {
    least = std::max(least, falling[filter.top_k - 1]);
  }
  double total = 0, above = 0;
  for (const float x : falling) {
    const double weight = x >= least ? std::exp(double{x} - falling.front()) : 0;
    total += weight;
    if (x >= std::max(a, b)) above += weight;
  }
  return std::abs(above / total - filter.top_p) < kTolerance;
}

// Keeps the tokens that the reference keeps and samples the same one: the sampled id rises with the
// random number, so two reference runs bracket it.
void expect_like_reference(const SamplingCase& c, const Row& row, const Filter& filter,
                           const SamplingAnswer& found) {
  const SamplingAnswer expected = run_reference(c);
  ASSERT_GE(found.sampled.token, 0) << text_of(row, filter);
  ASSERT_EQ(found.id, found.sampled.token);
  ASSERT_GE(found.values[found.id], found.threshold) << text_of(row, filter);
  if (kept(expected, found.threshold) != kept(expected, expected.threshold)) {
    EXPECT_TRUE(filter.top_p < 1 &&
                top_p_may_stop_at_either(expected, filter, found.threshold, expected.threshold))
        << text_of(row, filter) << ": kept from " << found.threshold << ", reference from "
        << expected.threshold;
    return;
  }
  const double at = uniform(c.params.seed, static_cast<uint64_t>(c.index));
  const int32_t low = run_reference(c, 1, std::max(at - kTolerance, 0.0)).id;
  const int32_t high = run_reference(c, 1, std::min(at + kTolerance, 1 - 0x1p-53)).id;
  EXPECT_TRUE(low <= found.id && found.id <= high)
      << text_of(row, filter) << ": " << found.id << " not in [" << low << ", " << high << "]";
  EXPECT_NEAR(found.sampled.log_sum_exp, expected.sampled.log_sum_exp, 1e-6);
  if (low == high) {
    EXPECT_NEAR(found.sampled.logprob, expected.sampled.logprob, 1e-6);
  }
}

TEST_F(CudaSample, KeepsAndDrawsWhatTheReferenceDoes) {  // no tsan
  uint64_t seed = 0;
  for (const int64_t vocab : {1, 2, 31, 3001}) {
    for (const Row& row : rows_of(vocab)) {
      const std::vector<Filter> filters = filters_of(vocab);
      std::vector<SamplingCase> cases;
      for (const Filter& filter : filters) cases.push_back(case_of(row, filter, ++seed));
      const std::vector<SamplingAnswer> found = run_on_gpu(cases);
      for (size_t i = 0; i < filters.size(); ++i) {
        expect_like_reference(cases[i], row, filters[i], found[i]);
      }
    }
  }
}

TEST_F(CudaSample, DoesSoInEveryOrderOfThreadsOverSeveralSlices) {
  const Row spread{"spread", normal_row(20001, 3, 9)};
  const Row flat{"flat", normal_row(20001, 0.3f, 10)};
  const std::vector<Filter> filters = {{0, 1, 0},   {0, 1, 0.02},      {50, 1, 0},
                                       {0, 0.9, 0}, {300, 0.8, 0.001}, {15000, 0.999, 0}};
  std::vector<SamplingAnswer> first;
  emulator::in_orders_of_run([&](const emulator::Order& order) {
    SCOPED_TRACE(order.name);
    std::vector<SamplingCase> cases;
    for (const Row* row : {&spread, &flat}) {
      for (const Filter& filter : filters) cases.push_back(case_of(*row, filter, 5));
    }
    const std::vector<SamplingAnswer> found = run_on_gpu(cases);
    for (size_t i = 0; i < cases.size(); ++i) {
      expect_like_reference(cases[i], i < filters.size() ? spread : flat,
                            filters[i % filters.size()], found[i]);
    }
    if (first.empty()) first = found;
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(std::memcmp(&found[i].sampled, &first[i].sampled, sizeof(SampledRow)), 0);
      EXPECT_EQ(found[i].threshold, first[i].threshold);
    }
  });
}

TEST_F(CudaSample, HoldsForTheVocabulariesOfRealModels) {  // no tsan
  for (const int64_t vocab : {49152, 128256, 151936}) {
    // Like a model's: most tokens are far below a few.
    Row row{"real", normal_row(vocab, 2.5f, vocab)};
    for (int64_t i = 0; i < vocab; i += 997) row.logits[i] += 9;
    Row equal{"equal", std::vector<float>(vocab, -2)};
    for (const Filter& filter : {Filter{0, 0.95, 0.05}, {40, 0.9999, 0}}) {
      for (const Row* any : {&row, &equal}) {
        const SamplingCase c = case_of(*any, filter, 77);
        expect_like_reference(c, *any, filter, run_on_gpu(c));
      }
    }
  }
}

TEST_F(CudaSample, GreedyTakesTheLowestIdAmongEquals) {  // no tsan
  for (const int64_t vocab : {1, 31, 65, 1000, 17000}) {
    std::vector<SamplingCase> cases;
    std::vector<int64_t> expected;
    for (int64_t lowest = 0; lowest < vocab; lowest += 1 + vocab / 6) {
      SamplingCase c;
      c.logits = normal_row(vocab, 1, 8);
      for (int64_t i = lowest; i < vocab; i += 7) c.logits[i] = 50;
      c.params.greedy = 1;
      c.params.top_k = 2;  // ignored
      c.params.top_p = 0.1;
      cases.push_back(c);
      expected.push_back(lowest);
    }
    const std::vector<SamplingAnswer> found = run_on_gpu(cases);
    for (size_t i = 0; i < cases.size(); ++i) ASSERT_EQ(found[i].id, expected[i]);
  }
  SamplingCase zeros;  // all are equal to a kernel that flushes denormals
  zeros.logits = {-1, -0.0f, 0.0f, 1e-45f};
  zeros.params.greedy = 1;
  EXPECT_EQ(run_on_gpu(zeros).id, 1);
}

TEST_F(CudaSample, SaysWhenEveryTokenIsForbidden) {  // no tsan
  for (const int64_t vocab : {1, 64, 9000}) {
    SamplingCase c;
    c.logits = normal_row(vocab, 1, 1);
    for (int64_t i = 0; i < vocab; ++i) c.bias.push_back({static_cast<int32_t>(i), -INFINITY});
    std::vector<SamplingCase> cases(3, c);
    cases[1].params.greedy = 1;
    cases[2].params.top_k = 3;
    cases[2].params.top_p = 0.5;
    cases[2].min_p = 0.1;
    for (const SamplingAnswer& found : run_on_gpu(cases)) {
      EXPECT_EQ(found.sampled.token, -1);
      EXPECT_EQ(found.sampled.is_finite, 1);
      EXPECT_EQ(found.id, 0);
      EXPECT_EQ(found.threshold, INFINITY);
    }
  }
}

TEST_F(CudaSample, TheOnlyAllowedTokenIsAlwaysDrawn) {  // no tsan
  SamplingCase c;
  c.logits = normal_row(1000, 3, 2);
  c.logits[777] = -FLT_MAX;
  for (int32_t i = 0; i < 1000; ++i) {
    if (i != 777) c.bias.push_back({i, -INFINITY});
  }
  std::vector<SamplingCase> cases;
  for (const Filter& filter : filters_of(1000)) {
    cases.push_back(c);
    cases.back().params.top_k = filter.top_k;
    cases.back().params.top_p = filter.top_p;
    cases.back().min_p = filter.min_p;
  }
  for (const SamplingAnswer& found : run_on_gpu(cases)) ASSERT_EQ(found.id, 777);
}

TEST_F(CudaSample, ExtremeTemperaturesGoFromTheMostProbableToAll) {
  SamplingCase cold;
  cold.logits = normal_row(3001, 2, 3);
  cold.params.temperature = 1.1e-5f;
  cold.params.top_p = 0.999;
  const int64_t most_probable =
      std::max_element(cold.logits.begin(), cold.logits.end()) - cold.logits.begin();
  EXPECT_EQ(run_on_gpu(cold).id, most_probable);
  SamplingCase hot = cold;
  hot.params.temperature = 100;
  const SamplingAnswer found = run_on_gpu(hot);
  EXPECT_GT(kept(found, found.threshold).size(), 2900u);
}

// Each row's seed and index give an independent random number; the sum of (observed − expected)² /
// expected over 9 degrees of freedom exceeds 33 once in 7,000 trials.
TEST_F(CudaSample, DrawsFollowTheProbabilities) {  // no tsan
  constexpr int kRows = 50, kSteps = 8, kVocab = 10;
  SamplingCase c;
  c.logits = normal_row(kVocab, 0.8f, 4);
  double total = 0;
  for (const float x : c.logits) total += std::exp(double{x});
  std::vector<double> observed(kVocab);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<SamplingCase> cases(kRows, c);
    for (int r = 0; r < kRows; ++r) {
      cases[r].params.seed = static_cast<uint64_t>(r) << 33;
      cases[r].index = step;
    }
    for (const SamplingAnswer& found : run_on_gpu(cases)) ++observed[found.id];
  }
  double chi_square = 0;
  for (int id = 0; id < kVocab; ++id) {
    const double expected = kRows * kSteps * std::exp(double{c.logits[id]}) / total;
    chi_square += (observed[id] - expected) * (observed[id] - expected) / expected;
  }
  EXPECT_LT(chi_square, 33);
}

TEST_F(CudaSample, TheDrawIsThatOfTheSeedAndTheIndex) {  // no tsan
  SamplingCase c;
  c.logits.assign(4096, 1);  // shows the random number: id = floor(uniform · 4096)
  std::vector<SamplingCase> cases;
  for (const int64_t index : {int64_t{0}, int64_t{1}, int64_t{10'000'000}, int64_t{1} << 40}) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1} << 63, uint64_t{12345}}) {
      cases.push_back(c);
      cases.back().index = index;
      cases.back().params.seed = seed;
    }
  }
  const std::vector<SamplingAnswer> found = run_on_gpu(cases);
  for (size_t i = 0; i < cases.size(); ++i) {
    const double at = uniform(cases[i].params.seed, static_cast<uint64_t>(cases[i].index));
    EXPECT_EQ(found[i].id, static_cast<int32_t>(at * 4096));
  }
}

TEST_F(CudaSample, AStepFindsNothingOfTheOneBefore) {  // no tsan
  const Row steep{"steep", normal_row(9001, 4, 31)}, flat{"flat", normal_row(9001, 1, 32)};
  const Filter top_p{0, 0.9, 0}, top_k{100, 1, 0}, both{100, 0.8, 0}, none{0, 1, 0};
  DeviceArray<std::byte> scratch(sampling_scratch_bytes(9001, 1));
  uint64_t seed = 0;
  for (const Row* row : {&steep, &flat}) {
    for (const Filter& filter : {top_p, top_k, both, none, top_k}) {
      const SamplingCase c = case_of(*row, filter, ++seed);
      expect_like_reference(c, *row, filter, run_on_gpu({c}, 1, &scratch)[0]);
    }
  }
}

// Alone, among completely different rows, at another row, and next to idle rows.
TEST_F(CudaSample, ARowDependsOnNoOther) {  // no tsan
  std::vector<SamplingCase> cases;
  for (int i = 0; i < 6; ++i) {
    SamplingCase c;
    c.logits = normal_row(2 * 9001, 0.5f + i, 20 + i);
    c.params.top_k = i % 2 == 0 ? 0 : 200;
    c.params.top_p = i < 3 ? 0.9 : 1;
    c.params.greedy = i == 4;
    c.params.temperature = i == 4 ? 1 : 0.8f;
    c.params.repetition_penalty = 1.2f;
    if (i == 2) c.bias = {{5, 10}, {8999, -INFINITY}};
    if (i == 3) c.history = {1, 2, 3, 4, 5};
    if (i == 5) c.logits[77] = NAN;
    c.params.seed = 100 + i;
    c.index = i;
    cases.push_back(c);
  }
  std::vector<SamplingCase> mixed(9, cases[0]);
  for (SamplingCase& c : mixed) c.is_idle = true;
  const int rows[] = {7, 3, 0, 5, 1, 8};
  for (int i = 0; i < 6; ++i) mixed[rows[i]] = cases[i];
  const std::vector<SamplingAnswer> together = run_on_gpu(mixed, 2);
  for (int i = 0; i < 6; ++i) {
    const SamplingAnswer alone = run_on_gpu(cases[i], 2);
    const SamplingAnswer& found = together[rows[i]];
    EXPECT_EQ(found.sampled.is_finite, alone.sampled.is_finite);
    EXPECT_EQ(found.id, alone.id);
    if (i == 5) continue;  // all else is invalid
    EXPECT_EQ(std::memcmp(&found.sampled, &alone.sampled, sizeof(SampledRow)), 0) << "row " << i;
    EXPECT_EQ(found.threshold, alone.threshold);
    EXPECT_TRUE(std::equal(found.values.begin(), found.values.end(), alone.values.begin()));
  }
  for (const int idle : {2, 4, 6}) {
    EXPECT_EQ(together[idle].id, -77);
    EXPECT_TRUE(std::isnan(together[idle].threshold));
  }
}

}  // namespace
}  // namespace sinkstream::cuda
