#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "kernels/tolerance.h"

namespace sinkstream {
namespace {

constexpr int64_t kDims[] = {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 1000, 8195};

// A copy of `numbers` whose surroundings are guarded.
Guarded guarded(const std::vector<float>& numbers) {
  Guarded copy(static_cast<int64_t>(numbers.size()), 5);
  std::copy(numbers.begin(), numbers.end(), copy.get());
  return copy;
}

class AddScaledTest : public TableTest<&Kernels::add_scaled> {
 protected:
  void add(const std::vector<float>& input, float scale, Guarded* out, int64_t rows, int threads) {
    ThreadPool pool(threads);
    table().add_scaled({.input = input.data(),
                        .scale = scale,
                        .out = out->get(),
                        .rows = rows,
                        .dim = out->count() / rows},
                       {&pool});
  }
};

TEST_P(AddScaledTest, MatchesTheReference) {
  ThreadPool pool(1);
  for (const int64_t dim : kDims) {
    for (const int64_t rows : {1, 3}) {
      for (const float scale : {1.0f, -0.22f, 30.0f}) {
        const auto input = random_floats(rows * dim, 7);
        Guarded out = guarded(random_floats(rows * dim, 8));
        Guarded expected = guarded(random_floats(rows * dim, 8));
        add(input, scale, &out, rows, 2);
        EXPECT_TRUE(out.is_intact());
        reference_kernels().add_scaled({.input = input.data(),
                                        .scale = scale,
                                        .out = expected.get(),
                                        .rows = rows,
                                        .dim = dim},
                                       {&pool});
        for (int64_t i = 0; i < rows * dim; ++i) {
          const double size = std::abs(double{scale} * input[i]) + std::abs(expected[i]);
          EXPECT_NEAR(out[i], expected[i], 1.3e-7 * size) << "dim " << dim << ", scale " << scale;
        }
      }
    }
  }
}

TEST_P(AddScaledTest, OfAScaleOfOneIsASum) {
  const auto input = random_floats(777, 7), before = random_floats(777, 8);
  Guarded out = guarded(before);
  add(input, 1, &out, 1, 1);
  for (int64_t i = 0; i < 777; ++i) EXPECT_EQ(out[i], before[i] + input[i]);
}

TEST_P(AddScaledTest, GivesTheSameBitsHoweverRowsAreDivided) {  // tsan
  constexpr int64_t kRows = 9, kDim = 4099;
  const auto input = random_floats(kRows * kDim, 7), before = random_floats(kRows * kDim, 8);
  Guarded together = guarded(before);
  add(input, 0.3f, &together, kRows, 3);
  for (int64_t r = 0; r < kRows; ++r) {
    const auto row = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + r * kDim, all.begin() + (r + 1) * kDim);
    };
    Guarded alone = guarded(row(before));
    add(row(input), 0.3f, &alone, 1, 1);
    EXPECT_TRUE(same_bits(together.get() + r * kDim, alone.get(), kDim)) << "row " << r;
  }
}

SINKSTREAM_TEST_ALL_TABLES(AddScaledTest);

class SoftCapTest : public TableTest<&Kernels::soft_cap> {
 protected:
  void soft_cap(SoftCapArgs args, Guarded* values, int64_t rows = 1, int threads = 1) {
    ThreadPool pool(threads);
    args.values = values->get();
    args.rows = rows;
    args.dim = values->count() / rows;
    table().soft_cap(args, {&pool});
  }
};

TEST_P(SoftCapTest, MatchesTheReference) {
  ThreadPool pool(1);
  for (const int64_t dim : kDims) {
    for (const int64_t rows : {1, 3}) {
      for (const SoftCapArgs options : {SoftCapArgs{.scale = 1, .cap = 30},
                                        {.scale = 0.0625f, .cap = 0},
                                        {.scale = 1.7f, .cap = 2.5f}}) {
        const auto values = random_floats(rows * dim, 7);
        Guarded out = guarded(values), expected = guarded(values);
        soft_cap(options, &out, rows, 2);
        EXPECT_TRUE(out.is_intact());
        SoftCapArgs args = options;
        args.values = expected.get();
        args.rows = rows;
        args.dim = dim;
        reference_kernels().soft_cap(args, {&pool});
        for (int64_t i = 0; i < rows * dim; ++i) {
          EXPECT_NEAR(out[i], expected[i], 5e-7 * std::abs(expected[i]))
              << "dim " << dim << ", cap " << options.cap << ", of " << values[i];
        }
      }
    }
  }
}

TEST_P(SoftCapTest, GivesKnownValues) {
  Guarded out = guarded({0, 10, -30, 1e30f, -1e30f, INFINITY});
  soft_cap({.scale = 2, .cap = 20}, &out);
  const float known[] = {0, 15.231883f, -19.901095f, 20, -20, 20};  // 20 · tanh 1, 20 · tanh −3
  for (int64_t i = 0; i < out.count(); ++i) EXPECT_NEAR(out[i], known[i], 2e-6f);
}

TEST_P(SoftCapTest, OfAScaleOfOneWithoutACapChangesNothing) {
  const auto values = random_floats(777, 7);
  Guarded out = guarded(values);
  soft_cap({}, &out);
  EXPECT_TRUE(same_bits(out.get(), values.data(), 777));
}

TEST_P(SoftCapTest, KeepsNan) {
  for (const float cap : {0.0f, 30.0f}) {
    Guarded out = guarded(std::vector<float>(21, NAN));
    soft_cap({.cap = cap}, &out);
    for (int64_t i = 0; i < 21; ++i) EXPECT_TRUE(std::isnan(out[i]));
  }
}

TEST_P(SoftCapTest, GivesTheSameBitsHoweverRowsAreDivided) {  // tsan
  constexpr int64_t kRows = 3, kDim = 49155;
  const auto values = random_floats(kRows * kDim, 7);
  Guarded together = guarded(values);
  soft_cap({.cap = 30}, &together, kRows, 3);
  for (int64_t r = 0; r < kRows; ++r) {
    Guarded alone = guarded({values.begin() + r * kDim, values.begin() + (r + 1) * kDim});
    soft_cap({.cap = 30}, &alone);
    EXPECT_TRUE(same_bits(together.get() + r * kDim, alone.get(), kDim)) << "row " << r;
  }
}

SINKSTREAM_TEST_ALL_TABLES(SoftCapTest);

class ClampTest : public TableTest<&Kernels::clamp> {
 protected:
  void clamp(Guarded* values, float limit, int64_t rows = 1, int threads = 1) {
    ThreadPool pool(threads);
    table().clamp(
        {.values = values->get(), .rows = rows, .dim = values->count() / rows, .limit = limit},
        {&pool});
  }
};

TEST_P(ClampTest, LimitsEveryElementAndNoOther) {
  ThreadPool pool(1);
  for (const int64_t dim : kDims) {
    for (const int64_t rows : {1, 3}) {
      const auto values = random_floats(rows * dim, 7);
      Guarded out = guarded(values), expected = guarded(values);
      clamp(&out, 0.75f, rows, 2);
      EXPECT_TRUE(out.is_intact());
      reference_kernels().clamp(
          {.values = expected.get(), .rows = rows, .dim = dim, .limit = 0.75f}, {&pool});
      for (int64_t i = 0; i < rows * dim; ++i) {
        EXPECT_EQ(out[i], expected[i]) << "dim " << dim;
        EXPECT_EQ(out[i], std::abs(values[i]) <= 0.75f ? values[i]
                          : values[i] < 0              ? -0.75f
                                                       : 0.75f);
      }
    }
  }
}

TEST_P(ClampTest, LimitsInfinityAndKeepsNan) {
  const float most = std::numeric_limits<float>::max();
  std::vector<float> values;
  for (int i = 0; i < 9; ++i) values.insert(values.end(), {INFINITY, -INFINITY, NAN, most, -most});
  Guarded out = guarded(values);
  clamp(&out, 8);
  for (int64_t i = 0; i < out.count(); i += 5) {
    EXPECT_EQ(out[i], 8);
    EXPECT_EQ(out[i + 1], -8);
    EXPECT_TRUE(std::isnan(out[i + 2]));
    EXPECT_EQ(out[i + 3], 8);
    EXPECT_EQ(out[i + 4], -8);
  }
}

TEST_P(ClampTest, GivesTheSameBitsOnAnyThread) {  // tsan
  const auto values = random_floats(40001, 7);
  Guarded one = guarded(values), three = guarded(values);
  clamp(&one, 1);
  clamp(&three, 1, 1, 3);
  EXPECT_TRUE(same_bits(one.get(), three.get(), one.count()));
}

SINKSTREAM_TEST_ALL_TABLES(ClampTest);

}  // namespace
}  // namespace sinkstream
