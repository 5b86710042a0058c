#include "kernels/cuda/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/errors.h"
#include "cuda/device_array.h"
#include "cuda_emulator/orders.h"
#include "kernels/table.h"
#include "kernels/tolerance.h"

namespace sinkstream::cuda {
namespace {

using emulator::in_orders_of_run;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_row(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(count);
  for (float& x : row) x = normal(random) * (random() % 50 == 0 ? 20.0f : 1.0f);
  return row;
}

// What a launch does, apart from sizes.
struct Case {
  int32_t splits = 0;  // 0: no residual
  NormKind kind = NormKind::kRms, post_kind = NormKind::kRms;
  bool has_norm = true, has_bias = false, has_second = false;
  bool has_post = false, has_post_bias = false;
  float scale = 1;
};

std::string text_of(const Case& c) {
  return cat("splits ", c.splits, c.has_norm ? "" : ", no norm",
             c.kind == NormKind::kLayer ? ", layer" : "", c.has_bias ? ", bias" : "",
             c.has_second ? ", second" : "", c.has_post ? ", post" : "",
             c.post_kind == NormKind::kLayer ? " layer" : "", c.has_post_bias ? " bias" : "",
             ", scale ", c.scale);
}

const Case kCases[] = {
    {},
    {.splits = 1},
    {.splits = 3},
    {.splits = 2, .scale = 0.22f},
    {.splits = 2, .kind = NormKind::kLayer},
    {.kind = NormKind::kLayer, .has_bias = true},
    {.splits = 1, .kind = NormKind::kLayer, .has_bias = true, .has_second = true},
    {.has_bias = true, .has_second = true},
    {.splits = 3, .has_post = true},
    {.splits = 2, .has_norm = false, .has_post = true},
    {.splits = 1, .has_norm = false, .scale = -3},
    {.splits = 2, .kind = NormKind::kLayer, .has_post = true, .has_post_bias = true, .scale = 0.5f},
    {.splits = 2, .post_kind = NormKind::kLayer, .has_post = true, .has_post_bias = true},
    {.splits = 1,
     .kind = NormKind::kLayer,
     .post_kind = NormKind::kLayer,
     .has_bias = true,
     .has_second = true,
     .has_post = true,
     .scale = 2},
};

// Rows of a residual stream and the output of a linear map for them, with spare rows and columns
// that are NaN.
struct Residual {
  int64_t rows, dim;
  Case what;
  int64_t room = rows + 2, stride = dim + 8;
  DeviceArray<float> hidden{rows * dim}, partials{what.splits * room * stride};
  DeviceArray<float> weights{3 * dim}, biases{3 * dim};  // of the norms, then of the post norm
  DeviceArray<bf16> out{rows * dim}, second{rows * dim};

  // Row r is row `first + r` of a stream of any size.
  void fill(int64_t first = 0) {
    const std::vector<float> numbers = random_row(6 * dim, 7);
    std::copy(numbers.begin(), numbers.begin() + 3 * dim, weights.get());
    std::copy(numbers.begin() + 3 * dim, numbers.end(), biases.get());
    for (int64_t r = 0; r < rows; ++r) {
      const auto seed = static_cast<uint32_t>(100 * (first + r));
      const std::vector<float> row = random_row(dim, seed);
      std::copy(row.begin(), row.end(), hidden.get() + r * dim);
      for (int32_t s = 0; s < what.splits; ++s) {
        const std::vector<float> part = random_row(dim, seed + s + 1);
        std::copy(part.begin(), part.end(), partials.get() + (s * room + r) * stride);
      }
    }
  }

  NormWeights norm_of(int64_t i, bool has_bias) {
    return {weights.get() + i * dim, has_bias ? biases.get() + i * dim : nullptr};
  }

  NormArgs args() {
    NormArgs args;
    args.hidden = hidden.get();
    if (what.splits > 0) args.residual = {partials.get(), what.splits, room, stride};
    if (what.has_post) args.post = norm_of(2, what.has_post_bias);
    args.post_kind = what.post_kind;
    args.post_eps = 1e-3f;
    args.residual_scale = what.scale;
    if (what.has_norm) args.norms[0] = norm_of(0, what.has_bias);
    args.outs[0] = out.get();
    if (what.has_second) {
      args.norms[1] = norm_of(1, what.has_bias);
      args.outs[1] = second.get();
    }
    args.kind = what.kind;
    args.eps = 1e-5f;
    args.rows = rows;
    args.dim = dim;
    return args;
  }

  // By the reference, a row at a time.
  std::vector<float> normalized(const std::vector<float>& input, NormKind kind, float eps,
                                const NormWeights& norm) const {
    std::vector<float> out(input.size());
    ThreadPool pool(1);
    reference_kernels().norm({.input = input.data(),
                              .input_stride = dim,
                              .weight = norm.weight,
                              .bias = norm.bias,
                              .out = out.data(),
                              .out_stride = dim,
                              .rows = rows,
                              .dim = dim,
                              .eps = eps,
                              .kind = kind},
                             {&pool});
    return out;
  }

  // The expected hidden numbers: splits are added first, in ascending order.
  std::vector<float> summed() {
    std::vector<float> expected(hidden.get(), hidden.get() + rows * dim);
    if (what.splits == 0) return expected;
    std::vector<float> more(rows * dim);
    for (int64_t i = 0; i < rows * dim; ++i) {
      const float* part = partials.get() + i / dim * stride + i % dim;
      more[i] = part[0];
      for (int32_t s = 1; s < what.splits; ++s) more[i] += part[s * room * stride];
    }
    if (what.has_post) {
      more = normalized(more, what.post_kind, 1e-3f, norm_of(2, what.has_post_bias));
    }
    for (int64_t i = 0; i < rows * dim; ++i) expected[i] += what.scale * more[i];
    return expected;
  }
};

double largest_of(const std::vector<float>& numbers) {
  double largest = 0;
  for (const float x : numbers) largest = std::fmax(largest, std::abs(double{x}));
  return largest;
}

// Half a unit of bfloat16, and the float32 sums before it.
void expect_near(const DeviceArray<bf16>& found, const std::vector<float>& expected,
                 const std::string& where) {
  const double slack = tolerance_of(DType::kFloat32) * largest_of(expected);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(double{to_float(found[int64_t(i)])} - double{expected[i]});
    ASSERT_LE(error, 0x1p-8 * std::abs(double{expected[i]}) + slack) << where << " number " << i;
  }
}

TEST(CudaNorm, IsTheDefinition) {
  for (const int64_t dim : {4, 124, 128, 132, 576, 2044, 2048, 4096, 14336}) {
    if (emulator::kFindsRaces && dim > 2048) continue;
    for (const Case& what : kCases) {
      in_orders_of_run([&](const emulator::Order& order) {
        Residual stream{.rows = 3, .dim = dim, .what = what};
        stream.fill();
        const std::vector<float> summed = stream.summed();
        ASSERT_EQ(norm(stream.args(), nullptr), kSuccess);
        const std::string where = cat(order.name, " dim ", dim, " ", text_of(what));
        if (what.has_post) {
          EXPECT_LT(worst_error(stream.hidden.get(), summed.data(), 3 * dim, largest_of(summed)),
                    tolerance_of(DType::kFloat32))
              << where;
        } else {
          EXPECT_EQ(std::memcmp(stream.hidden.get(), summed.data(), stream.hidden.bytes()), 0)
              << where;
        }
        if (!what.has_norm) {
          for (int64_t i = 0; i < 3 * dim; ++i) {
            ASSERT_EQ(stream.out[i].bits, to_bf16(stream.hidden[i]).bits) << where << " " << i;
          }
          return;
        }
        const NormArgs args = stream.args();
        expect_near(stream.out, stream.normalized(summed, what.kind, 1e-5f, args.norms[0]), where);
        if (what.has_second) {
          expect_near(stream.second, stream.normalized(summed, what.kind, 1e-5f, args.norms[1]),
                      where);
        } else {
          EXPECT_TRUE(stream.second.is_untouched(0, 3 * dim));
        }
      });
    }
  }
}

// Of the last output: together they have sixteen significant bits.
TEST(CudaNorm, WritesWhatRoundingTook) {
  for (const Case& what : kCases) {
    in_orders_of_run([&](const emulator::Order& order) {
      Residual stream{.rows = 3, .dim = 132, .what = what};
      stream.fill();
      const std::vector<float> summed = stream.summed();
      DeviceArray<bf16> rest(3 * 132);
      NormArgs args = stream.args();
      args.rest = rest.get();
      ASSERT_EQ(norm(args, nullptr), kSuccess);
      const int last = what.has_second ? 1 : 0;
      const std::vector<float> expected =
          what.has_norm ? stream.normalized(summed, what.kind, 1e-5f, args.norms[last]) : summed;
      const double slack = tolerance_of(DType::kFloat32) * largest_of(expected);
      const DeviceArray<bf16>& out = what.has_second ? stream.second : stream.out;
      for (int64_t i = 0; i < 3 * 132; ++i) {
        const double both = double{to_float(out[i])} + to_float(rest[i]);
        ASSERT_LE(std::abs(both - expected[i]), 0x1p-16 * std::abs(expected[i]) + slack)
            << order.name << " " << text_of(what) << " number " << i;
      }
    });
  }
}

TEST(CudaNorm, ARowIsTheSameInAnyCompany) {
  for (const Case& what : kCases) {
    Residual many{.rows = 20, .dim = 576, .what = what};
    many.fill();
    // Idle rows hold anything.
    for (int64_t i = 0; i < 576; ++i) many.hidden[7 * 576 + i] = kNan;
    ASSERT_EQ(norm(many.args(), nullptr), kSuccess);
    for (const int64_t row : {0, 6, 8, 19}) {
      Residual one{.rows = 1, .dim = 576, .what = what};
      one.fill(row);
      ASSERT_EQ(norm(one.args(), nullptr), kSuccess);
      EXPECT_EQ(std::memcmp(one.out.get(), many.out.get() + row * 576, 576 * 2), 0);
      EXPECT_EQ(std::memcmp(one.hidden.get(), many.hidden.get() + row * 576, 576 * 4), 0);
    }
  }
}

// The mean is far above the deviations from it.
TEST(CudaNorm, SubtractsTheMeanBeforeItSquares) {
  Residual stream{.rows = 1, .dim = 1024, .what = {.kind = NormKind::kLayer}};
  stream.fill();
  for (int64_t i = 0; i < 1024; ++i) stream.hidden[i] = 3000 + (i % 2 == 0 ? 0.5f : -0.5f);
  std::fill(stream.weights.get(), stream.weights.get() + 1024, 1.0f);
  ASSERT_EQ(norm(stream.args(), nullptr), kSuccess);
  for (int64_t i = 0; i < 1024; ++i) {
    EXPECT_EQ(to_float(stream.out[i]), i % 2 == 0 ? 1 : -1) << i;
  }
}

TEST(CudaNorm, AddsAResidualWithoutAnOutput) {
  Residual stream{.rows = 2, .dim = 64, .what = {.splits = 2, .has_post = true, .scale = 3}};
  stream.fill();
  const std::vector<float> summed = stream.summed();
  NormArgs args = stream.args();
  args.norms[0] = {};
  args.outs[0] = nullptr;
  ASSERT_EQ(norm(args, nullptr), kSuccess);
  EXPECT_TRUE(stream.out.is_untouched(0, 2 * 64));
  EXPECT_LT(worst_error(stream.hidden.get(), summed.data(), 2 * 64, largest_of(summed)),
            tolerance_of(DType::kFloat32));
}

TEST(CudaNorm, WritesOnlyItsRowsAndLeavesHiddenWithoutAResidual) {
  Residual stream{.rows = 2, .dim = 64, .what = {}};
  stream.fill();
  const std::vector<float> before(stream.hidden.get(), stream.hidden.get() + 2 * 64);
  NormArgs args = stream.args();
  args.rows = 1;
  ASSERT_EQ(norm(args, nullptr), kSuccess);
  EXPECT_TRUE(stream.out.is_untouched(64, 64));
  EXPECT_EQ(std::memcmp(before.data(), stream.hidden.get(), stream.hidden.bytes()), 0);
}

TEST(CudaNorm, ARowOfZerosStaysZero) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    Residual stream{.rows = 1, .dim = 64, .what = {.kind = kind}};
    stream.fill();
    std::fill(stream.hidden.get(), stream.hidden.get() + 64, 0.0f);
    ASSERT_EQ(norm(stream.args(), nullptr), kSuccess);
    for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(to_float(stream.out[i]), 0.0f);
  }
}

TEST(CudaNorm, SaysWhenItWasNotLaunched) {
  Residual stream{.rows = 1, .dim = 64, .what = {}};
  stream.fill();
  emulator::fail_next_launch(2);
  EXPECT_EQ(norm(stream.args(), nullptr), 2);
  EXPECT_TRUE(stream.out.is_untouched(0, 64));
  NormArgs none = stream.args();
  none.rows = 0;
  EXPECT_EQ(norm(none, nullptr), kSuccess);
  EXPECT_TRUE(stream.out.is_untouched(0, 64));
}

}  // namespace
}  // namespace sinkstream::cuda
