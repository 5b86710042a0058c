#include "kernels/norm.h"

#include <gtest/gtest.h>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "kernels/tolerance.h"

namespace sinkstream {
namespace {

constexpr int64_t kDims[] = {1,  3,  4,  5,  7,  8,  9,  15,  16,  17,  31,  32,
                             33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 576, 5000};

// The norms that models have: LayerNorm with and without a bias, RMSNorm without. All four work.
struct Form {
  NormKind kind;
  bool has_bias;
};

constexpr Form kForms[] = {{NormKind::kRms, false},
                           {NormKind::kRms, true},
                           {NormKind::kLayer, false},
                           {NormKind::kLayer, true}};

std::string text_of(const Form& form, int64_t dim) {
  return std::string(form.kind == NormKind::kRms ? "rms" : "layer") +
         (form.has_bias ? " with bias" : "") + ", dim " + std::to_string(dim);
}

class NormTest : public TableTest<&Kernels::norm> {
 protected:
  void norm(const NormArgs& args, int threads = 1) {
    ThreadPool pool(threads);
    table().norm(args, {&pool});
  }

  // Compares rows with the reference. A rounded mean has an error of `center`'s rounding.
  void expect_reference(const Form& form, int64_t rows, int64_t dim, float center) {
    auto input = random_floats(rows * (dim + 3) + 1, 7);
    for (float& x : input) x += center;
    const auto weight = random_floats(dim + 1, 8), bias = random_floats(dim + 1, 9);
    Guarded out(rows * (dim + 2), 5), expected(rows * (dim + 2));
    NormArgs args = {.input = input.data() + 1,
                     .input_stride = dim + 3,
                     .weight = weight.data() + 1,
                     .bias = form.has_bias ? bias.data() + 1 : nullptr,
                     .out = out.get(),
                     .out_stride = dim + 2,
                     .rows = rows,
                     .dim = dim,
                     .eps = 1e-5f,
                     .kind = form.kind};
    norm(args, 2);
    EXPECT_TRUE(out.is_intact());
    args.out = expected.get();
    ThreadPool pool(1);
    reference_kernels().norm(args, {&pool});
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = expected.get() + r * (dim + 2);
      double scale = 1e-30;
      for (int64_t d = 0; d < dim; ++d) scale = std::max(scale, std::abs(double{row[d]}));
      EXPECT_LE(share_of_tolerance(out.get() + r * (dim + 2), row, dim, scale * (1 + center),
                                   DType::kFloat32),
                1)
          << text_of(form, dim);
      EXPECT_TRUE(std::isnan(out[r * (dim + 2) + dim]))
          << "writes between rows, " << text_of(form, dim);
    }
  }
};

TEST_P(NormTest, MatchesTheReference) {
  for (const Form& form : kForms) {
    for (const int64_t dim : kDims) {
      for (const int64_t rows : {0, 1, 3}) expect_reference(form, rows, dim, 0);
    }
  }
}

// E[x²] − mean² would lose all digits.
TEST_P(NormTest, OfLayersFarFromZeroMatchesTheReference) {
  for (const bool has_bias : {false, true}) {
    for (const int64_t dim : {64, 577}) {
      expect_reference({NormKind::kLayer, has_bias}, 2, dim, 5000);
    }
  }
}

TEST_P(NormTest, GivesKnownValues) {
  const float input[] = {3, 1}, weight[] = {2, 4}, bias[] = {10, 20};
  float out[2];
  NormArgs args = {.input = input,
                   .input_stride = 2,
                   .weight = weight,
                   .bias = bias,
                   .out = out,
                   .out_stride = 2,
                   .rows = 1,
                   .dim = 2,
                   .eps = 3,
                   .kind = NormKind::kLayer};
  norm(args);  // the mean is 2, the variance 1
  EXPECT_EQ(out[0], 10 + 2 * 0.5f);
  EXPECT_EQ(out[1], 20 - 4 * 0.5f);
  args.kind = NormKind::kRms;
  args.eps = 4;
  norm(args);  // the mean square is 5
  EXPECT_NEAR(out[0], 10 + 2 * 3 / 3.0f, 1e-6);
  EXPECT_NEAR(out[1], 20 + 4 * 1 / 3.0f, 2e-6);
}

TEST_P(NormTest, MayWriteOverItsInput) {
  for (const Form& form : kForms) {
    for (const int64_t dim : kDims) {
      const auto weight = random_floats(dim, 8), bias = random_floats(dim, 7);
      std::vector<float> input = random_floats(2 * dim, 9);
      std::vector<float> out(2 * dim);
      NormArgs args = {.input = input.data(),
                       .input_stride = dim,
                       .weight = weight.data(),
                       .bias = form.has_bias ? bias.data() : nullptr,
                       .out = out.data(),
                       .out_stride = dim,
                       .rows = 2,
                       .dim = dim,
                       .eps = 1e-6f,
                       .kind = form.kind};
      norm(args);
      args.out = input.data();
      norm(args);
      EXPECT_TRUE(same_bits(out.data(), input.data(), 2 * dim)) << text_of(form, dim);
    }
  }
}

// A row without variance becomes the bias, or zeros.
TEST_P(NormTest, KeepsRowsOfEqualNumbersFinite) {
  for (const Form& form : kForms) {
    for (const int64_t dim : {5, 40}) {
      const std::vector<float> input(dim, form.kind == NormKind::kLayer ? 2.0f : 0.0f);
      const std::vector<float> weight(dim, 2.0f), bias(dim, 3.0f);
      std::vector<float> out(dim, NAN);
      norm({.input = input.data(),
            .input_stride = dim,
            .weight = weight.data(),
            .bias = form.has_bias ? bias.data() : nullptr,
            .out = out.data(),
            .out_stride = dim,
            .rows = 1,
            .dim = dim,
            .eps = 1e-6f,
            .kind = form.kind});
      EXPECT_EQ(out, std::vector<float>(dim, form.has_bias ? 3.0f : 0.0f)) << text_of(form, dim);
    }
  }
}

TEST_P(NormTest, GivesARowTheSameBitsWithAnyOtherRows) {  // tsan
  constexpr int64_t kDim = 577, kRows = 100;              // several tasks of different lengths
  const auto input = random_floats(kRows * kDim, 9), weight = random_floats(kDim, 8);
  const auto bias = random_floats(kDim, 7);
  for (const Form& form : kForms) {
    std::vector<float> together(kRows * kDim), alone(kDim);
    NormArgs args = {.input = input.data(),
                     .input_stride = kDim,
                     .weight = weight.data(),
                     .bias = form.has_bias ? bias.data() : nullptr,
                     .out = together.data(),
                     .out_stride = kDim,
                     .rows = kRows,
                     .dim = kDim,
                     .eps = 1e-6f,
                     .kind = form.kind};
    norm(args, 3);
    args.rows = 1;
    args.out = alone.data();
    for (int64_t r = 0; r < kRows; ++r) {
      args.input = input.data() + r * kDim;
      norm(args);
      EXPECT_TRUE(same_bits(together.data() + r * kDim, alone.data(), kDim))
          << text_of(form, kDim) << ", row " << r;
    }
  }
}

SINKSTREAM_TEST_ALL_TABLES(NormTest);

}  // namespace
}  // namespace sinkstream
