#include "kernels/activation.h"

#include <gtest/gtest.h>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "kernels/tolerance.h"

namespace sinkstream {
namespace {

constexpr Activation kKinds[] = {Activation::kSilu,          Activation::kGelu,
                                 Activation::kGeluTanh,      Activation::kRelu2,
                                 Activation::kClampedSwiglu, Activation::kXielu};
constexpr Xielu kNumbers = {.positive = 0.7f, .negative = 1.3f, .slope = 0.5f, .knee = -1e-3f};

const char* name_of(Activation kind) {
  switch (kind) {
    case Activation::kSilu: return "silu";
    case Activation::kGelu: return "gelu";
    case Activation::kGeluTanh: return "gelu_tanh";
    case Activation::kRelu2: return "relu2";
    case Activation::kClampedSwiglu: return "clamped_swiglu";
    case Activation::kXielu: return "xielu";
  }
  return "";
}

class ActivationTest : public TableTest<&Kernels::activation> {
 protected:
  void activation(const ActivationArgs& args, int threads = 1) {
    ThreadPool pool(threads);
    table().activation(args, {&pool});
  }

  // f of every x, as one row.
  std::vector<float> activated(Activation kind, const std::vector<float>& x) {
    const auto count = static_cast<int64_t>(x.size());
    std::vector<float> out(x.size(), NAN);
    activation({.gate = x.data(),
                .out = out.data(),
                .stride = count,
                .rows = 1,
                .dim = count,
                .kind = kind,
                .xielu = kNumbers});
    return out;
  }
};

// The reference's f of every x.
std::vector<float> expected_of(Activation kind, const std::vector<float>& x) {
  ThreadPool pool(1);
  const auto count = static_cast<int64_t>(x.size());
  std::vector<float> out(x.size(), NAN);
  reference_kernels().activation({.gate = x.data(),
                                  .out = out.data(),
                                  .stride = count,
                                  .rows = 1,
                                  .dim = count,
                                  .kind = kind,
                                  .xielu = kNumbers},
                                 {&pool});
  return out;
}

// How far apart two results may be because 1.702 · x is rounded before its exponential, or because
// xIELU is a difference where it is negative.
double error_of_slope(Activation kind, double x, double expected, double up = 1) {
  if (kind == Activation::kXielu) return x < 0 ? 3e-7 * std::abs(x * up) : 0;
  if (kind != Activation::kClampedSwiglu) return 0;
  return 0x1p-24 * kSwigluSlope * std::abs(x * expected);
}

TEST_P(ActivationTest, MatchesTheReference) {
  ThreadPool pool(1);
  for (const Activation kind : kKinds) {
    for (const bool is_gated : {true, false}) {
      for (const int64_t dim :
           {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 1536, 4095, 4096, 4097, 8193}) {
        for (const int64_t rows : {1, 3}) {
          const int64_t stride = dim + 3;
          auto gate = random_floats(rows * stride + 1, 7);
          // Covers the curved part; outliers of 80. e^−80 would be lost in gelu_tanh's reference.
          for (float& x : gate) x *= kind == Activation::kGeluTanh && x < 0 ? 0.05f : 4.0f;
          const auto up = random_floats(rows * stride + 1, 8);
          Guarded out(rows * stride, 5), expected(rows * stride);
          ActivationArgs args = {.gate = gate.data() + 1,
                                 .up = is_gated ? up.data() + 1 : nullptr,
                                 .out = out.get(),
                                 .stride = stride,
                                 .rows = rows,
                                 .dim = dim,
                                 .kind = kind,
                                 .xielu = kNumbers};
          activation(args, 2);
          EXPECT_TRUE(out.is_intact());
          args.out = expected.get();
          reference_kernels().activation(args, {&pool});
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t d = 0; d < dim; ++d) {
              const int64_t i = r * stride + d;
              // Compared element by element: nothing cancels.
              const double factor = is_gated ? args.up[i] : 1;
              const double error = error_of_slope(kind, args.gate[i], expected[i], factor);
              EXPECT_NEAR(out[i], expected[i], 1e-6 * std::abs(expected[i]) + 1e-35 + error)
                  << name_of(kind) << ", dim " << dim;
            }
            EXPECT_TRUE(std::isnan(out[r * stride + dim]))
                << "writes between rows, " << name_of(kind) << ", dim " << dim;
          }
        }
      }
    }
  }
}

TEST_P(ActivationTest, IsRightFromEndToEndOfTheNumbers) {
  std::vector<float> x = {0.0f, -0.0f, 1e-30f, -1e-30f, 3e38f, -3e38f, INFINITY};
  for (float at = -104; at < 104; at += 0.0137f) x.push_back(at);
  for (const Activation kind : kKinds) {
    const auto out = activated(kind, x), expected = expected_of(kind, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const bool is_whole = kind == Activation::kSilu && x[i] == expected[i];
      const bool is_xielu = kind == Activation::kXielu;
      if (is_xielu && x[i] < -1e38f) continue;  // overflows before the difference
      if ((x[i] == 0 && !is_xielu) || is_whole || std::isinf(expected[i])) {
        EXPECT_EQ(out[i], expected[i]) << name_of(kind) << "(" << x[i] << ")";
        continue;
      }
      // e^−87.4 is subnormal; 87.4 times that may be 0.
      double tolerance = 5e-7 * std::abs(expected[i]) + 1.1e-36;
      tolerance += error_of_slope(kind, x[i], expected[i]);
      if (kind == Activation::kGeluTanh) {
        // An exponent of 2y has the error of y; 1 + tanh y has the error of 1.
        const double y = 0.8 * std::abs(x[i]) * (1 + 0.0447 * x[i] * x[i]);
        tolerance += 4e-7 * std::min(y, 50.0) * std::abs(expected[i]) + 2e-16 * std::abs(x[i]);
      }
      EXPECT_NEAR(out[i], expected[i], tolerance) << name_of(kind) << "(" << x[i] << ")";
    }
  }
}

TEST_P(ActivationTest, GivesKnownValues) {
  const std::vector<float> x = {-3, -1, 1, 3};
  const std::vector<float> known[] = {
      {-0.14227762f, -0.26894142f, 0.73105858f, 2.85772238f},
      {-0.00404969f, -0.15865525f, 0.84134475f, 2.99595031f},
      {-0.00363739f, -0.15880801f, 0.84119199f, 2.99636261f},
      {0, 0, 1, 9},
      {-0.01807131f, -0.15420423f, 0.84579577f, 2.98192869f},
      {1.16472319f, -0.02175673f, 1.20000000f, 7.80000000f},
  };
  for (const Activation kind : kKinds) {
    const auto out = activated(kind, x);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(out[i], known[static_cast<size_t>(kind)][i], 2e-7f * std::abs(x[i]))
          << name_of(kind) << "(" << x[i] << ")";
    }
  }
}

TEST_P(ActivationTest, GivesGeluOfTheTailWithinSixUnits) {
  std::vector<float> x;
  for (float at = -12.9f; at < 6; at += 0.000731f) x.push_back(at);
  const auto out = activated(Activation::kGelu, x), expected = expected_of(Activation::kGelu, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const float unit = std::abs(expected[i] - std::nextafter(expected[i], 0.0f));
    ASSERT_LE(std::abs(double{out[i]} - expected[i]), 6 * unit) << "gelu(" << x[i] << ")";
  }
}

TEST_P(ActivationTest, KeepsNan) {
  const std::vector<float> x(21, NAN);
  for (const Activation kind : kKinds) {
    for (const float out : activated(kind, x)) EXPECT_TRUE(std::isnan(out)) << name_of(kind);
  }
}

TEST_P(ActivationTest, WithoutUpIsTheSameAsWithOnes) {
  const auto x = random_floats(1100, 7);
  const auto count = static_cast<int64_t>(x.size());
  for (const Activation kind : kKinds) {
    // What becomes a factor of 1.
    const std::vector<float> up(x.size(), kind == Activation::kClampedSwiglu ? 0.0f : 1.0f);
    std::vector<float> out(x.size(), NAN);
    activation({.gate = x.data(),
                .up = up.data(),
                .out = out.data(),
                .stride = count,
                .rows = 1,
                .dim = count,
                .kind = kind,
                .xielu = kNumbers});
    EXPECT_TRUE(same_bits(out.data(), activated(kind, x).data(), count)) << name_of(kind);
  }
}

TEST_P(ActivationTest, MayWriteOverItsInputs) {
  for (const Activation kind : kKinds) {
    for (const int64_t dim : {1, 7, 16, 33, 1100}) {
      const auto gate = random_floats(2 * dim, 7), up = random_floats(2 * dim, 8);
      std::vector<float> out(2 * dim);
      ActivationArgs args = {.gate = gate.data(),
                             .up = up.data(),
                             .out = out.data(),
                             .stride = dim,
                             .rows = 2,
                             .dim = dim,
                             .kind = kind,
                             .xielu = kNumbers};
      activation(args);
      std::vector<float> over_gate = gate, over_up = up;
      args.gate = args.out = over_gate.data();
      activation(args);
      EXPECT_TRUE(same_bits(out.data(), over_gate.data(), 2 * dim))
          << name_of(kind) << ", dim " << dim;
      args.gate = gate.data();
      args.up = args.out = over_up.data();
      activation(args);
      EXPECT_TRUE(same_bits(out.data(), over_up.data(), 2 * dim))
          << name_of(kind) << ", dim " << dim;
    }
  }
}

TEST_P(ActivationTest, GivesARowTheSameBitsWithAnyOtherRowsOnAnyThread) {  // tsan
  constexpr int64_t kDim = 8195, kRows = 5;                                // three tasks per row
  const auto gate = random_floats(kRows * kDim, 7), up = random_floats(kRows * kDim, 8);
  for (const Activation kind : kKinds) {
    std::vector<float> together(kRows * kDim), alone(kRows * kDim);
    ActivationArgs args = {.gate = gate.data(),
                           .up = up.data(),
                           .out = together.data(),
                           .stride = kDim,
                           .rows = kRows,
                           .dim = kDim,
                           .kind = kind,
                           .xielu = kNumbers};
    activation(args, 3);
    args.rows = 1;
    for (int64_t r = 0; r < kRows; ++r) {
      args.gate = gate.data() + r * kDim;
      args.up = up.data() + r * kDim;
      args.out = alone.data() + r * kDim;
      activation(args);
    }
    EXPECT_TRUE(same_bits(together.data(), alone.data(), kRows * kDim)) << name_of(kind);
  }
}

SINKSTREAM_TEST_ALL_TABLES(ActivationTest);

}  // namespace
}  // namespace sinkstream
