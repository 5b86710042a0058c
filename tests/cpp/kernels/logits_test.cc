#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <random>
#include <vector>

#include "common/errors.h"
#include "kernels/tables.h"

namespace sinkstream {
namespace {

const int64_t kVocabs[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 49152};

class Logits : public TableTest<&Kernels::logits> {};

std::vector<float> random_row(int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(random);
  if (vocab > 2) row[vocab / 2] = 40;  // an outlier
  return row;
}

struct Result {
  bool is_finite = false;
  double log_sum_exp = 0;
  std::vector<float> out;
};

// `args` without its pointers to rows and results. Row and output begin `offset` floats after an
// aligned address; the output has canaries on both sides.
Result run(const Kernels& table, LogitsArgs args, const std::vector<float>& row, int offset = 0,
           int threads = 1) {
  constexpr float kCanary = 12345;
  const size_t vocab = row.size();
  std::vector<float> input(offset);
  input.insert(input.end(), row.begin(), row.end());
  std::vector<float> out(vocab + 32, kCanary);
  std::fill_n(out.begin() + 8 + offset, vocab, NAN);
  Result result;
  args.input = input.data() + offset;
  args.out = out.data() + 8 + offset;
  args.vocab = static_cast<int64_t>(vocab);
  args.is_finite = &result.is_finite;
  args.log_sum_exp = &result.log_sum_exp;
  ThreadPool pool(threads);
  table.logits(args, {&pool});
  for (int i = 0; i < 8 + offset; ++i) EXPECT_EQ(out[i], kCanary);
  for (size_t i = 8 + offset + vocab; i < out.size(); ++i) EXPECT_EQ(out[i], kCanary);
  result.out.assign(args.out, args.out + vocab);
  return result;
}

struct Request {
  std::vector<TokenBias> bias;
  std::vector<TokenCount> counts;
  LogitsArgs args;
};

Request random_request(int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  Request request;
  const float biases[] = {-INFINITY, -100, 3.5f, 0, 1e38f};
  for (int64_t id = random() % 3; id < vocab; id += 1 + random() % 20) {
    request.bias.push_back({static_cast<int32_t>(id), biases[random() % 5]});
  }
  for (int64_t id = random() % 3; id < vocab; id += 1 + random() % 9) {
    request.counts.push_back({static_cast<int32_t>(id), static_cast<int32_t>(1 + random() % 50)});
  }
  request.args.bias = request.bias.data();
  request.args.bias_count = static_cast<int64_t>(request.bias.size());
  request.args.counts = request.counts.data();
  request.args.count_count = static_cast<int64_t>(request.counts.size());
  request.args.repetition_penalty = 1.3f;
  request.args.presence_penalty = 0.4f;
  request.args.frequency_penalty = -0.1f;
  request.args.temperature = 0.7f;
  return request;
}

TEST_P(Logits, EqualTheReferenceBitForBitInEveryTable) {
  for (const int64_t vocab : kVocabs) {
    for (int offset = 0; offset < 3; ++offset) {
      SCOPED_TRACE(cat("vocab ", vocab, ", offset ", offset));
      const std::vector<float> row = random_row(vocab, vocab);
      const Request request = random_request(vocab, vocab + offset);
      const Result expected = run(reference_kernels(), request.args, row);
      const Result result = run(table(), request.args, row, offset);
      ASSERT_TRUE(result.is_finite);
      EXPECT_NEAR(result.log_sum_exp, expected.log_sum_exp, 1e-6);
      for (int64_t i = 0; i < vocab; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(result.out[i]), std::bit_cast<uint32_t>(expected.out[i]))
            << "token " << i << ": " << result.out[i] << " and " << expected.out[i];
      }
    }
  }
}

TEST_P(Logits, ApplyBiasThenRepetitionThenPresenceAndFrequencyThenTemperature) {
  const TokenBias bias[] = {{0, -5}, {2, -INFINITY}};
  const TokenCount counts[] = {{0, 1}, {1, 3}, {2, 1}};
  const LogitsArgs args = {.bias = bias,
                           .bias_count = 2,
                           .counts = counts,
                           .count_count = 3,
                           .repetition_penalty = 2,
                           .presence_penalty = 0.5f,
                           .frequency_penalty = 0.25f,
                           .temperature = 0.5f};
  const Result result = run(table(), args, {4, 4, 4, 4, -4});
  EXPECT_EQ(result.out[0], ((4 - 5) * 2 - 0.5f - 0.25f) / 0.5f);  // negative because of its bias
  EXPECT_EQ(result.out[1], (4.0f / 2 - 0.5f - 3 * 0.25f) / 0.5f);
  EXPECT_EQ(result.out[2], -INFINITY);
  EXPECT_EQ(result.out[3], 4 / 0.5f);
  EXPECT_EQ(result.out[4], -4 / 0.5f);
}

TEST_P(Logits, NeutralValuesChangeNothing) {
  const std::vector<float> row = random_row(1000, 1);
  EXPECT_EQ(run(table(), {}, row).out, row);
}

TEST_P(Logits, MayBeChangedInPlace) {
  const std::vector<float> row = random_row(1000, 1);
  const Request request = random_request(1000, 2);
  std::vector<float> in_place = row;
  LogitsArgs args = request.args;
  bool is_finite = false;
  args.input = args.out = in_place.data();
  args.vocab = 1000;
  args.is_finite = &is_finite;
  ThreadPool pool(1);
  table().logits(args, {&pool});
  EXPECT_EQ(in_place, run(table(), request.args, row).out);
}

TEST_P(Logits, ANonFiniteOneIsFoundAtEveryPlace) {
  for (const int64_t vocab : {1, 5, 64, 131}) {
    for (int64_t index = 0; index < vocab; ++index) {
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        std::vector<float> row = random_row(vocab, 3);
        row[index] = bad;
        ASSERT_FALSE(run(table(), {}, row).is_finite) << bad << " at " << index << " of " << vocab;
      }
    }
  }
}

TEST_P(Logits, ExtremeFiniteOnesAreFinite) {
  const Result result = run(table(), {}, {FLT_MAX, -FLT_MAX, FLT_MIN, 1e-45f, -0.0f, 0.0f, 1});
  EXPECT_TRUE(result.is_finite);
  EXPECT_EQ(result.log_sum_exp, FLT_MAX);
}

TEST_P(Logits, LogSumExpHoldsAtTheEndsOfTheRange) {
  for (const float value : {-1e4f, 0.0f, 1e4f}) {
    const Result result = run(table(), {}, std::vector<float>(1000, value));
    EXPECT_NEAR(result.log_sum_exp, value + std::log(1000.0), 1e-6);
  }
  EXPECT_EQ(run(table(), {}, std::vector<float>(99, FLT_MAX)).log_sum_exp, FLT_MAX);
  EXPECT_EQ(run(table(), {}, std::vector<float>(99, -FLT_MAX)).log_sum_exp, -FLT_MAX);
}

TEST_P(Logits, OnlyABiasOfMinusInfinityForbids) {
  const TokenBias bias[] = {{0, FLT_MAX}, {1, -FLT_MAX}, {2, -INFINITY}};
  const TokenCount counts[] = {{0, 1}, {1, INT32_MAX}, {2, 7}, {3, INT32_MAX}};
  for (const float temperature : {1e-5f, 1.0f, 100.0f}) {
    for (const float repetition : {0.01f, 1.0f, 100.0f}) {
      for (const float frequency : {-100.0f, 0.0f, 100.0f}) {
        const LogitsArgs args = {.bias = bias,
                                 .bias_count = 3,
                                 .counts = counts,
                                 .count_count = 4,
                                 .repetition_penalty = repetition,
                                 .frequency_penalty = frequency,
                                 .temperature = temperature};
        const Result result = run(table(), args, {FLT_MAX, -FLT_MAX, 5, -FLT_MAX, FLT_MAX});
        for (int i = 0; i < 5; ++i) {
          if (i == 2) {
            EXPECT_EQ(result.out[i], -INFINITY);
          } else {
            EXPECT_TRUE(std::isfinite(result.out[i])) << "token " << i;
          }
        }
      }
    }
  }
}

TEST_P(Logits, DoNotDependOnTheThreadCount) {  // tsan
  const std::vector<float> row = random_row(49152, 5);
  const Request request = random_request(49152, 6);
  const Result one = run(table(), request.args, row, 0, 1);
  const Result three = run(table(), request.args, row, 0, 3);
  EXPECT_EQ(one.out, three.out);
  EXPECT_EQ(one.log_sum_exp, three.log_sum_exp);
}

SINKSTREAM_TEST_ALL_TABLES(Logits);

}  // namespace
}  // namespace sinkstream
