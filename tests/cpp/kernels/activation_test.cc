#include "kernels/activation.h"

#include <gtest/gtest.h>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "kernels/tolerance.h"

namespace sinkstream {
namespace {

class ActivationTest : public TableTest<&Kernels::activation> {
 protected:
  void activation(const ActivationArgs& args, int threads = 1) {
    ThreadPool pool(threads);
    table().activation(args, {&pool});
  }
};

TEST_P(ActivationTest, MatchesTheReference) {
  ThreadPool pool(1);
  for (const int64_t dim :
       {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 1536, 4095, 4096, 4097, 8193}) {
    for (const int64_t rows : {1, 3}) {
      const int64_t stride = dim + 3;
      auto gate = random_floats(rows * stride + 1, 7);
      for (float& x : gate) x *= 4;  // covers the curved part of silu; outliers of 80
      const auto up = random_floats(rows * stride + 1, 8);
      Guarded out(rows * stride, 5), expected(rows * stride);
      ActivationArgs args = {.gate = gate.data() + 1,
                             .up = up.data() + 1,
                             .out = out.get(),
                             .stride = stride,
                             .rows = rows,
                             .dim = dim};
      activation(args, 2);
      EXPECT_TRUE(out.is_intact());
      args.out = expected.get();
      reference_kernels().activation(args, {&pool});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t i = r * stride + d;
          // Compared element by element: silu has no cancellation.
          EXPECT_NEAR(out[i], expected[i], 1e-6 * std::abs(expected[i]) + 1e-35) << "dim " << dim;
        }
        EXPECT_TRUE(std::isnan(out[r * stride + dim])) << "writes between rows, dim " << dim;
      }
    }
  }
}

TEST_P(ActivationTest, IsRightFromEndToEndOfTheNumbers) {
  ThreadPool pool(1);
  std::vector<float> gate = {0.0f, -0.0f, 1e-30f, -1e-30f, 3e38f, -3e38f, INFINITY};
  for (float x = -104; x < 104; x += 0.0137f) gate.push_back(x);
  const auto count = static_cast<int64_t>(gate.size());
  const std::vector<float> up(count, 1.0f);
  std::vector<float> out(count, NAN), expected(count, NAN);
  ActivationArgs args = {.gate = gate.data(),
                         .up = up.data(),
                         .out = out.data(),
                         .stride = count,
                         .rows = 1,
                         .dim = count};
  activation(args);
  args.out = expected.data();
  reference_kernels().activation(args, {&pool});
  for (int64_t i = 0; i < count; ++i) {
    if (gate[i] == expected[i]) {
      EXPECT_EQ(out[i], expected[i]) << "silu(" << gate[i] << ")";
    } else {  // e^−87.4 is subnormal; 87.4 times that may be 0
      EXPECT_NEAR(out[i], expected[i], 5e-7 * std::abs(expected[i]) + 1.1e-36)
          << "silu(" << gate[i] << ")";
    }
  }
}

TEST_P(ActivationTest, KeepsNan) {
  const std::vector<float> gate(21, NAN), up(21, 1.0f);
  std::vector<float> out(21);
  activation({.gate = gate.data(),
              .up = up.data(),
              .out = out.data(),
              .stride = 21,
              .rows = 1,
              .dim = 21});
  for (const float x : out) EXPECT_TRUE(std::isnan(x));
}

TEST_P(ActivationTest, MayWriteOverItsInputs) {
  for (const int64_t dim : {1, 7, 16, 33, 1100}) {
    auto gate = random_floats(2 * dim, 7), up = random_floats(2 * dim, 8);
    std::vector<float> out(2 * dim);
    ActivationArgs args = {.gate = gate.data(),
                           .up = up.data(),
                           .out = out.data(),
                           .stride = dim,
                           .rows = 2,
                           .dim = dim};
    activation(args);
    std::vector<float> over_gate = gate, over_up = up;
    args.gate = args.out = over_gate.data();
    activation(args);
    EXPECT_TRUE(same_bits(out.data(), over_gate.data(), 2 * dim)) << "dim " << dim;
    args.gate = gate.data();
    args.up = args.out = over_up.data();
    activation(args);
    EXPECT_TRUE(same_bits(out.data(), over_up.data(), 2 * dim)) << "dim " << dim;
  }
}

SINKSTREAM_TEST_ALL_TABLES(ActivationTest);

}  // namespace
}  // namespace sinkstream
