#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/float_mode.h"
#include "kernels/tables.h"

namespace sinkstream {
namespace {

// The tolerance of probabilities: weights are floats, summed in blocks.
constexpr double kTolerance = 1e-5;
constexpr double kLastUniform = 1 - 0x1p-53;

class Sample : public TableTest<&Kernels::sample> {
  // Kernels flush denormal logits to zero, so the tests do too.
  const FlushDenormals flush_;
};

struct Result {
  int32_t token = -2;
  float threshold = NAN;
};

// `args` without its pointers. The row begins `offset` floats after an aligned address; memory past
// the scratch must not change.
Result run(const Kernels& table, SampleArgs args, const std::vector<float>& row, int offset = 0,
           int threads = 1) {
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  const int64_t bytes = sample_scratch_bytes(static_cast<int64_t>(row.size()));
  const auto scratch = std::make_unique<Line[]>(bytes / 64 + 2);
  std::byte* const begin = scratch[0].bytes;
  std::fill(begin, begin + bytes + 64, std::byte{0xff});  // NaN
  std::vector<float> logits(offset, 1e30f);               // would win if it were read
  logits.insert(logits.end(), row.begin(), row.end());
  logits.push_back(1e30f);

  Result result;
  args.logits = logits.data() + offset;
  args.vocab = static_cast<int64_t>(row.size());
  args.scratch = begin;
  args.token = &result.token;
  args.threshold = &result.threshold;
  ThreadPool pool(threads);
  table.sample(args, {&pool});
  for (int64_t i = bytes; i < bytes + 64; ++i) EXPECT_EQ(begin[i], std::byte{0xff});
  return result;
}

std::set<int64_t> kept(const std::vector<float>& row, float threshold) {
  std::set<int64_t> ids;
  for (size_t id = 0; id < row.size(); ++id) {
    if (row[id] >= threshold) ids.insert(static_cast<int64_t>(id));
  }
  return ids;
}

std::vector<float> normal_row(int64_t vocab, float spread, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(random);
  return row;
}

struct Row {
  std::string name;
  std::vector<float> logits;
};

// Rows that each test another way to fail.
std::vector<Row> rows(int64_t vocab) {
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
    if (i % 3 != vocab % 3) masked.logits[i] = -INFINITY;
  }
  masked.logits[vocab / 2] = 1;
  rows.push_back(masked);
  Row geometric{"geometric", std::vector<float>(vocab)};
  for (int64_t i = 0; i < vocab; ++i) geometric.logits[i] = std::ldexp(1.0f, -(i % 140));
  rows.push_back(geometric);
  Row zeros{"zeros", std::vector<float>(vocab)};
  for (int64_t i = 0; i < vocab; ++i) zeros.logits[i] = i % 2 ? -0.0f : i % 5 ? 0.0f : 1e-45f;
  rows.push_back(zeros);
  return rows;
}

std::vector<SampleArgs> filters(int64_t vocab) {
  std::vector<SampleArgs> filters;
  for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{40}, vocab / 2, vocab - 1,
                              vocab, int64_t{INT32_MAX}}) {
    for (const double top_p : {1.0, 0.999999, 0.95, 0.5, 1e-6}) {
      for (const double min_p : {0.0, 1e-30, 0.05, 0.9, 1.0}) {
        filters.push_back({.top_k = std::max<int64_t>(top_k, 0), .top_p = top_p, .min_p = min_p});
      }
    }
  }
  return filters;
}

// Whether top-p may stop at either value: the probability above the lower one, of what top-k
// leaves, is p within rounding.
bool top_p_may_stop_at_either(const std::vector<float>& row, const SampleArgs& args, float a,
                              float b) {
  std::vector<float> falling = row;
  std::sort(falling.begin(), falling.end(), std::greater<>());
  float least = -FLT_MAX;
  if (args.top_k > 0 && args.top_k < static_cast<int64_t>(row.size())) {
    least = std::max(least, falling[args.top_k - 1]);
  }
  double total = 0, above = 0;
  for (const float x : falling) {
    const double weight = x >= least ? std::exp(double{x} - falling.front()) : 0;
    total += weight;
    if (x >= std::max(a, b)) above += weight;
  }
  return std::abs(above / total - args.top_p) < kTolerance;
}

TEST_P(Sample, EveryTableKeepsWhatTheReferenceKeeps) {
  for (const int64_t vocab : {1, 2, 3, 63, 64, 65, 200, 3001}) {
    for (const Row& row : rows(vocab)) {
      for (const SampleArgs& args : filters(vocab)) {
        const Result expected = run(reference_kernels(), args, row.logits);
        const Result result = run(table(), args, row.logits);
        if (kept(row.logits, result.threshold) == kept(row.logits, expected.threshold)) continue;
        EXPECT_TRUE(args.top_p < 1 && top_p_may_stop_at_either(row.logits, args, result.threshold,
                                                               expected.threshold))
            << "vocab " << vocab << ", row " << row.name << ", top_k " << args.top_k << ", top_p "
            << args.top_p << ", min_p " << args.min_p << ": kept from " << result.threshold
            << ", reference from " << expected.threshold;
      }
    }
  }
}

// The draw increases with `uniform`, so the reference brackets it.
TEST_P(Sample, EveryTableDrawsWhatTheReferenceDraws) {
  std::mt19937_64 random(7);
  for (const int64_t vocab : {1, 5, 64, 65, 1000}) {
    for (const Row& row : rows(vocab)) {
      for (SampleArgs args : filters(vocab)) {
        args.uniform = std::uniform_real_distribution<>(0, 1)(random);
        SampleArgs before = args, after = args;
        before.uniform = std::max(args.uniform - kTolerance, 0.0);
        after.uniform = std::min(args.uniform + kTolerance, kLastUniform);
        const Result low = run(reference_kernels(), before, row.logits);
        const Result high = run(reference_kernels(), after, row.logits);
        const Result result = run(table(), args, row.logits, 1);
        if (kept(row.logits, result.threshold) != kept(row.logits, low.threshold)) continue;
        EXPECT_TRUE(low.token <= result.token && result.token <= high.token)
            << "vocab " << vocab << ", row " << row.name << ", top_k " << args.top_k << ", top_p "
            << args.top_p << ", min_p " << args.min_p << ": " << result.token << " not in ["
            << low.token << ", " << high.token << "]";
      }
    }
  }
}

TEST_P(Sample, DrawsOnlyWhatIsKeptAtBothEndsOfTheDraw) {
  for (const Row& row : rows(1000)) {
    for (SampleArgs args : filters(1000)) {
      for (const double uniform : {0.0, 0x1p-53, 0.5, kLastUniform}) {
        args.uniform = uniform;
        const Result result = run(table(), args, row.logits);
        ASSERT_GE(result.token, 0);
        ASSERT_GE(row.logits[result.token], result.threshold)
            << "row " << row.name << ", uniform " << uniform;
      }
    }
  }
}

TEST_P(Sample, GreedyTakesTheLowestIdAmongEquals) {
  for (const int64_t vocab : {1, 4, 63, 64, 65, 129, 1000}) {
    for (int64_t lowest = 0; lowest < vocab; lowest += 1 + vocab / 40) {
      std::vector<float> row = normal_row(vocab, 1, 8);
      for (int64_t i = lowest; i < vocab; i += 7) row[i] = 50;
      ASSERT_EQ(run(table(), {.greedy = true}, row, lowest % 3).token, lowest);
    }
  }
  // Equal for a kernel, which flushes denormals.
  EXPECT_EQ(run(table(), {.greedy = true}, {-1, -0.0f, 0.0f, 1e-45f}).token, 1);
  EXPECT_EQ(run(table(), {.greedy = true}, {-INFINITY, -FLT_MAX}).token, 1);
}

TEST_P(Sample, GreedyIgnoresFilters) {
  const SampleArgs args = {.greedy = true, .top_k = 2, .top_p = 0.1, .min_p = 1, .uniform = 0.9};
  EXPECT_EQ(run(table(), args, {1, 3, 2}).token, 1);
}

TEST_P(Sample, SaysWhenEveryTokenIsForbidden) {
  for (const int64_t vocab : {1, 64, 1000}) {
    const std::vector<float> row(vocab, -INFINITY);
    EXPECT_EQ(run(table(), {}, row).token, -1);
    EXPECT_EQ(run(table(), {.greedy = true}, row).token, -1);
    EXPECT_EQ(run(table(), {.top_k = 3, .top_p = 0.5, .min_p = 0.1}, row).token, -1);
    EXPECT_TRUE(kept(row, run(table(), {}, row).threshold).empty());
  }
}

TEST_P(Sample, TheOnlyAllowedTokenIsAlwaysDrawn) {
  for (SampleArgs args : filters(1000)) {
    std::vector<float> row(1000, -INFINITY);
    row[777] = -FLT_MAX;
    for (const double uniform : {0.0, kLastUniform}) {
      args.uniform = uniform;
      ASSERT_EQ(run(table(), args, row).token, 777);
    }
  }
}

TEST_P(Sample, TopPKeepsTheTokenThatCrosses) {
  const std::vector<float> row = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  using Ids = std::set<int64_t>;
  EXPECT_EQ(kept(row, run(table(), {.top_p = 0.01}, row).threshold), (Ids{1}));
  EXPECT_EQ(kept(row, run(table(), {.top_p = 0.49}, row).threshold), (Ids{1}));
  EXPECT_EQ(kept(row, run(table(), {.top_p = 0.51}, row).threshold), (Ids{1, 2}));
  EXPECT_EQ(kept(row, run(table(), {.top_p = 0.79}, row).threshold), (Ids{1, 2}));
  EXPECT_EQ(kept(row, run(table(), {.top_p = 0.81}, row).threshold), (Ids{0, 1, 2}));
}

TEST_P(Sample, TopPCountsAmongWhatTopKLeft) {
  const std::vector<float> row = {std::log(0.4f), std::log(0.2f), std::log(0.2f), std::log(0.19f)};
  using Ids = std::set<int64_t>;
  // 0.4 of 0.99 is less than 0.49; 0.4 of the 0.8 that top-2 leaves (two are equal) is more.
  EXPECT_EQ(kept(row, run(table(), {.top_p = 0.49}, row).threshold), (Ids{0, 1, 2}));
  EXPECT_EQ(kept(row, run(table(), {.top_k = 2, .top_p = 0.49}, row).threshold), (Ids{0}));
}

TEST_P(Sample, EqualLogitsStayOrGoTogether) {
  const std::vector<float> row = {1, 5, 3, 3, 3, 1};
  using Ids = std::set<int64_t>;
  EXPECT_EQ(kept(row, run(table(), {.top_k = 2}, row).threshold), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(kept(row, run(table(), {.top_p = 0.85}, row).threshold), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(kept(row, run(table(), {.min_p = 0.1}, row).threshold), (Ids{1, 2, 3, 4}));
}

TEST_P(Sample, DrawsFollowTheProbabilities) {
  const std::vector<float> row = normal_row(100, 1, 9);
  double total = 0;
  for (const float x : row) total += std::exp(double{x});
  constexpr int kDraws = 20000;
  std::vector<int> drawn(row.size());
  for (int i = 0; i < kDraws; ++i) {
    ++drawn[run(table(), {.uniform = (i + 0.5) / kDraws}, row).token];
  }
  for (size_t id = 0; id < row.size(); ++id) {
    EXPECT_NEAR(drawn[id], kDraws * std::exp(double{row[id]}) / total, 1.5);
  }
}

TEST_P(Sample, DoesNotDependOnAlignmentOrThreads) {  // tsan
  const std::vector<float> row = normal_row(5000, 3, 10);
  for (const SampleArgs& args : filters(5000)) {
    const Result one = run(table(), args, row, 0, 1);
    const Result other = run(table(), args, row, 3, 2);
    ASSERT_EQ(one.token, other.token);
    ASSERT_EQ(one.threshold, other.threshold);
  }
}

SINKSTREAM_TEST_ALL_TABLES(Sample);

}  // namespace
}  // namespace sinkstream
