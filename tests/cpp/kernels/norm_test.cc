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

class NormTest : public TableTest<&Kernels::norm> {
 protected:
  void norm(const NormArgs& args, int threads = 1) {
    ThreadPool pool(threads);
    table().norm(args, {&pool});
  }
};

TEST_P(NormTest, MatchesTheReference) {
  for (const int64_t dim : kDims) {
    for (const int64_t rows : {0, 1, 3}) {
      const auto input = random_floats(rows * (dim + 3) + 1, 7);
      const auto weight = random_floats(dim + 1, 8);
      Guarded out(rows * (dim + 2), 5), expected(rows * (dim + 2));
      NormArgs args = {.input = input.data() + 1,
                       .input_stride = dim + 3,
                       .weight = weight.data() + 1,
                       .out = out.get(),
                       .out_stride = dim + 2,
                       .rows = rows,
                       .dim = dim,
                       .eps = 1e-5f};
      norm(args, 2);
      EXPECT_TRUE(out.is_intact());
      args.out = expected.get();
      ThreadPool pool(1);
      reference_kernels().norm(args, {&pool});
      for (int64_t r = 0; r < rows; ++r) {
        const float* row = expected.get() + r * (dim + 2);
        double scale = 1e-30;
        for (int64_t d = 0; d < dim; ++d) scale = std::max(scale, std::abs(double{row[d]}));
        EXPECT_LE(share_of_tolerance(out.get() + r * (dim + 2), row, dim, scale, DType::kFloat32),
                  1)
            << "dim " << dim;
        EXPECT_TRUE(std::isnan(out[r * (dim + 2) + dim])) << "writes between rows, dim " << dim;
      }
    }
  }
}

TEST_P(NormTest, MayWriteOverItsInput) {
  for (const int64_t dim : kDims) {
    const auto weight = random_floats(dim, 8);
    std::vector<float> input = random_floats(2 * dim, 9);
    std::vector<float> out(2 * dim);
    NormArgs args = {.input = input.data(),
                     .input_stride = dim,
                     .weight = weight.data(),
                     .out = out.data(),
                     .out_stride = dim,
                     .rows = 2,
                     .dim = dim,
                     .eps = 1e-6f};
    norm(args);
    args.out = input.data();
    norm(args);
    EXPECT_TRUE(same_bits(out.data(), input.data(), 2 * dim)) << "dim " << dim;
  }
}

TEST_P(NormTest, KeepsZerosFinite) {
  const std::vector<float> zeros(40), weight(40, 2.0f);
  std::vector<float> out(40, NAN);
  norm({.input = zeros.data(),
        .input_stride = 40,
        .weight = weight.data(),
        .out = out.data(),
        .out_stride = 40,
        .rows = 1,
        .dim = 40,
        .eps = 1e-6f});
  EXPECT_EQ(out, zeros);
}

TEST_P(NormTest, GivesARowTheSameBitsWithAnyOtherRows) {
  constexpr int64_t kDim = 577, kRows = 100;  // several tasks of different lengths
  const auto input = random_floats(kRows * kDim, 9), weight = random_floats(kDim, 8);
  std::vector<float> together(kRows * kDim), alone(kDim);
  NormArgs args = {.input = input.data(),
                   .input_stride = kDim,
                   .weight = weight.data(),
                   .out = together.data(),
                   .out_stride = kDim,
                   .rows = kRows,
                   .dim = kDim,
                   .eps = 1e-6f};
  norm(args, 3);
  args.rows = 1;
  args.out = alone.data();
  for (int64_t r = 0; r < kRows; ++r) {
    args.input = input.data() + r * kDim;
    norm(args);
    EXPECT_TRUE(same_bits(together.data() + r * kDim, alone.data(), kDim)) << "row " << r;
  }
}

SINKSTREAM_TEST_ALL_TABLES(NormTest);

}  // namespace
}  // namespace sinkstream
