#include "kernels/cuda/sampling/logits.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfloat>

#include "common/errors.h"
#include "cuda/sampling_fixture.h"

namespace sinkstream::cuda {
namespace {

const int64_t kVocabs[] = {1, 2, 31, 64, 65, 8191, 8192, 8193, 49152};

SamplingCase random_case(int64_t vocab, int splits, uint64_t seed) {
  std::mt19937_64 random(seed);
  SamplingCase c;
  c.logits = normal_row(splits * vocab, 4, seed);
  if (vocab > 2) c.logits[vocab / 2] = 40;  // an outlier
  const float biases[] = {-INFINITY, -100, 3.5f, 0, 1e38f};
  for (int64_t id = random() % 3; id < vocab; id += 1 + random() % (1 + vocab / 30)) {
    c.bias.push_back({static_cast<int32_t>(id), biases[random() % 5]});
  }
  for (int i = 0; i < 60; ++i) {
    const uint64_t id = random() % 2 == 0 ? random() % 7 : random();
    c.history.push_back(static_cast<int32_t>(id % static_cast<uint64_t>(vocab)));
  }
  c.sinks = 2;
  c.window = 35;
  c.params.repetition_penalty = 1.3f;
  c.params.presence_penalty = 0.4f;
  c.params.frequency_penalty = -0.1f;
  c.params.temperature = 0.7f;
  return c;
}

void expect_same_bits(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i]))
        << "token " << i << ": " << found[i] << " and " << expected[i];
  }
}

TEST(CudaLogits, EqualTheReferenceBitForBit) {  // no tsan
  emulator::in_orders_of_run([](const emulator::Order& order) {
    for (const int64_t vocab : kVocabs) {
      for (const int splits : {1, 3}) {
        SCOPED_TRACE(cat(order.name, ", vocab ", vocab, ", splits ", splits));
        const SamplingCase c = random_case(vocab, splits, vocab + splits);
        const SamplingAnswer expected = run_reference(c, splits);
        const SamplingAnswer found = run_on_gpu(c, splits);
        ASSERT_EQ(found.sampled.is_finite, 1);
        EXPECT_NEAR(found.sampled.log_sum_exp, expected.sampled.log_sum_exp, 1e-6);
        expect_same_bits(found.values, expected.values);
      }
    }
  });
}

// Before penalties and temperature, and before log Σ exp.
TEST(CudaLogits, AreScaledAndCappedAsByTheReference) {
  for (const LogitBend bend : {LogitBend{0.0625f, 0}, {1, 30}, {-0.5f, 2}, {8, 1e-3f}}) {
    for (const int splits : {1, 3}) {
      SCOPED_TRACE(cat("scale ", bend.scale, ", cap ", bend.soft_cap, ", splits ", splits));
      SamplingCase c = random_case(9000, splits, 4);
      c.bend = bend;
      const SamplingAnswer expected = run_reference(c, splits);
      const SamplingAnswer found = run_on_gpu(c, splits);
      ASSERT_EQ(found.sampled.is_finite, 1);
      // A logit of 26 is off by one unit in the last place, 2e-6.
      EXPECT_NEAR(found.sampled.log_sum_exp, expected.sampled.log_sum_exp, 4e-6);
      EXPECT_EQ(found.sampled.token, expected.sampled.token);
      EXPECT_NEAR(found.sampled.logprob, expected.sampled.logprob, 4e-6);
      if (bend.soft_cap == 0) expect_same_bits(found.values, expected.values);
      for (size_t i = 0; i < expected.values.size(); ++i) {
        if (found.values[i] == expected.values[i]) continue;  // forbidden
        EXPECT_NEAR(found.values[i], expected.values[i],
                    1e-6 * (bend.soft_cap + std::abs(expected.values[i])))
            << "token " << i;
      }
    }
  }
}

TEST(CudaLogits, ACapHidesNoNan) {
  SamplingCase c;
  c.logits = normal_row(1000, 4, 1);
  c.bend.soft_cap = 30;
  c.logits[77] = NAN;
  EXPECT_EQ(run_on_gpu(c).sampled.is_finite, 0);
}

TEST(CudaLogits, NeutralValuesChangeNothing) {
  SamplingCase c;
  c.logits = normal_row(1000, 4, 1);
  expect_same_bits(run_on_gpu(c).values, c.logits);
}

TEST(CudaLogits, ANonFiniteOneIsFoundAtEveryPlace) {  // no tsan
  for (const int64_t vocab : {1, 31, 131, 9000}) {
    std::vector<SamplingCase> cases;
    for (int64_t index = 0; index < vocab; index += 1 + vocab / 5) {
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        SamplingCase c;
        c.logits = normal_row(vocab, 4, 2);
        c.logits[index] = bad;
        c.bias = {{static_cast<int32_t>(index), -INFINITY}};  // must hide nothing
        c.history = {0};
        for (const int greedy : {0, 1}) {
          c.params.greedy = greedy;
          cases.push_back(c);
        }
      }
    }
    for (const SamplingAnswer& found : run_on_gpu(cases)) {
      ASSERT_EQ(found.sampled.is_finite, 0) << "vocab " << vocab;
      ASSERT_EQ(found.sampled.token, -1);
      ASSERT_EQ(found.id, 0);
      ASSERT_EQ(found.threshold, INFINITY);
    }
  }
}

TEST(CudaLogits, ExtremeFiniteOnesAreFinite) {
  SamplingCase c;
  c.logits = {FLT_MAX, -FLT_MAX, FLT_MIN, 1e-45f, -0.0f, 0.0f, 1};
  const SamplingAnswer found = run_on_gpu(c);
  EXPECT_EQ(found.sampled.is_finite, 1);
  EXPECT_EQ(found.sampled.log_sum_exp, FLT_MAX);
  EXPECT_EQ(found.sampled.token, 0);
  EXPECT_EQ(found.sampled.logprob, 0);
}

TEST(CudaLogits, LogSumExpHoldsAtTheEndsOfTheRange) {
  for (const float value : {-1e4f, 0.0f, 1e4f}) {
    SamplingCase c;
    c.logits.assign(20000, value);
    EXPECT_NEAR(run_on_gpu(c).sampled.log_sum_exp, value + std::log(20000.0), 1e-6);
  }
  for (const float value : {FLT_MAX, -FLT_MAX}) {
    SamplingCase c;
    c.logits.assign(99, value);
    EXPECT_EQ(run_on_gpu(c).sampled.log_sum_exp, value);
  }
}

TEST(CudaLogits, OnlyABiasOfMinusInfinityForbids) {  // no tsan
  for (const float temperature : {1e-5f, 1.0f, 100.0f}) {
    for (const float repetition : {0.01f, 1.0f, 100.0f}) {
      for (const float frequency : {-100.0f, 0.0f, 100.0f}) {
        SamplingCase c;
        c.logits = {FLT_MAX, -FLT_MAX, 5, -FLT_MAX, FLT_MAX};
        c.bias = {{0, FLT_MAX}, {1, -FLT_MAX}, {2, -INFINITY}};
        c.history = {0, 1, 2, 3, 3, 3};
        c.window = 39;
        c.params.temperature = temperature;
        c.params.repetition_penalty = repetition;
        c.params.frequency_penalty = frequency;
        const SamplingAnswer found = run_on_gpu(c);
        expect_same_bits(found.values, run_reference(c).values);
        for (int i = 0; i < 5; ++i) {
          EXPECT_EQ(std::isfinite(found.values[i]), i != 2) << "token " << i;
        }
      }
    }
  }
}

// Slices meet between tokens 8191 and 8192.
TEST(CudaLogits, AreChangedOnBothSidesOfASlicesBorder) {
  SamplingCase c;
  c.logits.assign(8194, 2);
  c.bias = {{8191, 1}, {8192, -INFINITY}, {8193, -1}};
  c.history = {8191, 8192, 8193, 0};
  c.sinks = 0;
  c.params.presence_penalty = 0.5f;
  const std::vector<float> values = run_on_gpu(c).values;
  EXPECT_EQ(values[0], 1.5f);
  EXPECT_EQ(values[1], 2);
  EXPECT_EQ(values[8190], 2);
  EXPECT_EQ(values[8191], 2.5f);
  EXPECT_EQ(values[8192], -INFINITY);
  EXPECT_EQ(values[8193], 0.5f);
}

}  // namespace
}  // namespace sinkstream::cuda
