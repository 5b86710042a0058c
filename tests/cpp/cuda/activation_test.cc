#include "kernels/cuda/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "cuda/device_array.h"
#include "cuda_emulator/orders.h"
#include "kernels/table.h"

namespace sinkstream::cuda {
namespace {

// The output of a linear map to gate and up: `splits` parts, with spare room that is NaN.
struct GateUp {
  int64_t rows, dim;
  int32_t splits;
  int64_t room = rows + 1, stride = 2 * dim + 4, out_stride = dim + 4;
  DeviceArray<float> partials{splits * room * stride};
  DeviceArray<bf16> out{rows * out_stride};

  void fill(int64_t first = 0) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int32_t s = 0; s < splits; ++s) {
        std::mt19937 random(static_cast<uint32_t>((first + r) * 16 + s));
        std::normal_distribution<float> normal;
        float* row = partials.get() + (s * room + r) * stride;
        for (int64_t i = 0; i < 2 * dim; ++i) {
          row[i] = normal(random) * (random() % 20 == 0 ? 40.0f : 1.0f);
        }
      }
    }
  }

  ActivationArgs args() {
    return {.input = {.data = partials.get(), .splits = splits, .rows = room, .stride = stride},
            .rows = rows,
            .dim = dim,
            .out = out.get(),
            .out_stride = out_stride};
  }

  // A row of gates and ups, summed.
  std::vector<float> summed(int64_t row) const {
    std::vector<float> sums(2 * dim);
    for (int64_t i = 0; i < 2 * dim; ++i) {
      const float* part = partials.get() + row * stride + i;
      sums[i] = part[0];
      for (int32_t s = 1; s < splits; ++s) sums[i] += part[s * room * stride];
    }
    return sums;
  }
};

// Half a unit of bfloat16, and a little for the float32 before it. False for NaN. The reference's
// 1 + tanh cancels below about −6.
bool is_near(Activation kind, float actual, float expected) {
  const float slack = kind == Activation::kGeluTanh ? 1e-13f : 1e-30f;
  return std::abs(actual - expected) <= 0x1.01p-8f * std::abs(expected) + slack;
}

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                       Activation::kRelu2, Activation::kClampedSwiglu};

TEST(CudaActivation, IsTheDefinition) {
  ThreadPool pool(1);
  for (const int64_t dim : {4, 508, 512, 516, 1536}) {
    for (const Activation kind : kActivations) {
      for (const bool is_gated : {true, false}) {
        const int32_t splits = is_gated ? 3 : 1;
        emulator::in_orders_of_run([&](const emulator::Order& order) {
          GateUp gate_up{.rows = 3, .dim = dim, .splits = splits};
          gate_up.fill();
          ActivationArgs args = gate_up.args();
          args.activation = kind;
          args.is_gated = is_gated;
          ASSERT_EQ(activation(args, nullptr), kSuccess);
          for (int64_t row = 0; row < 3; ++row) {
            const std::vector<float> sums = gate_up.summed(row);
            std::vector<float> expected(dim);
            reference_kernels().activation({.gate = sums.data(),
                                            .up = is_gated ? sums.data() + dim : nullptr,
                                            .out = expected.data(),
                                            .stride = dim,
                                            .rows = 1,
                                            .dim = dim,
                                            .kind = kind},
                                           {&pool});
            for (int64_t i = 0; i < dim; ++i) {
              const float found = to_float(gate_up.out[row * gate_up.out_stride + i]);
              ASSERT_TRUE(is_near(kind, found, expected[i]))
                  << order.name << " kind " << int(kind) << (is_gated ? " gated" : "") << " dim "
                  << dim << " row " << row << " column " << i << " of " << sums[i] << ": " << found
                  << ", " << expected[i];
            }
            EXPECT_TRUE(gate_up.out.is_untouched(row * gate_up.out_stride + dim, 4));
          }
        });
      }
    }
  }
}

// In double, without cancellation.
double defined(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kGelu: return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    case Activation::kGeluTanh: {
      const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
      return x / (1 + std::exp(-2 * u));
    }
    case Activation::kRelu2: return x < 0 ? 0 : x * x;
    case Activation::kClampedSwiglu: {
      const double gate = std::min(x, 7.0);
      return gate / (1 + std::exp(-1.702 * gate));
    }
  }
  return NAN;
}

TEST(CudaActivation, IsRightFromEndToEndOfTheNumbers) {
  std::vector<float> inputs = {0, -0.0f, 1e-30f, -1e-30f, 1e15f, -1e15f, 3e38f, -3e38f};
  for (float x = -12; x < 12; x += 0.0137f) inputs.push_back(x);
  while (inputs.size() % 4 != 0) inputs.push_back(1);
  const auto dim = static_cast<int64_t>(inputs.size());
  for (const Activation kind : kActivations) {
    GateUp values{.rows = 1, .dim = dim, .splits = 1};
    std::copy(inputs.begin(), inputs.end(), values.partials.get());
    ActivationArgs args = values.args();
    args.activation = kind;
    args.is_gated = false;
    ASSERT_EQ(activation(args, nullptr), kSuccess);
    for (int64_t i = 0; i < dim; ++i) {
      const double expected = defined(kind, inputs[i]);
      const float found = to_float(values.out[i]);
      if (std::abs(expected) > 3.39e38) {
        EXPECT_TRUE(std::isinf(found)) << int(kind) << " of " << inputs[i] << ": " << found;
      } else {  // where a result is tiny, the argument of its exponential has few digits left
        EXPECT_LE(std::abs(found - expected), 0x1.04p-8 * std::abs(expected) + 1e-25)
            << int(kind) << " of " << inputs[i] << ": " << found << ", " << expected;
      }
    }
  }
}

TEST(CudaActivation, KeepsNan) {
  for (const Activation kind : kActivations) {
    for (const bool is_gated : {true, false}) {
      GateUp values{.rows = 1, .dim = 4, .splits = 1};
      values.fill();
      values.partials[2] = NAN;
      ActivationArgs args = values.args();
      args.activation = kind;
      args.is_gated = is_gated;
      ASSERT_EQ(activation(args, nullptr), kSuccess);
      for (int64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(std::isnan(to_float(values.out[i])), i == 2) << int(kind);
      }
    }
  }
}

TEST(CudaActivation, IsFiniteWhereTheExponentialIsNot) {
  GateUp gate_up{.rows = 1, .dim = 4, .splits = 1};
  const float gates[] = {-200, -87, 87, 200};
  for (int64_t i = 0; i < 4; ++i) {
    gate_up.partials[i] = gates[i];
    gate_up.partials[4 + i] = 2;
  }
  ASSERT_EQ(activation(gate_up.args(), nullptr), kSuccess);
  const float expected[] = {0, -87 * std::exp(-87.0f) * 2, 174, 400};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(to_float(gate_up.out[i]), expected[i], std::abs(expected[i]) / 256) << i;
  }
}

TEST(CudaActivation, ARowIsTheSameInAnyCompany) {
  GateUp many{.rows = 64, .dim = 1536, .splits = 2};
  many.fill();
  many.partials[5 * many.stride] = std::nanf("");  // an idle row holds anything
  ASSERT_EQ(activation(many.args(), nullptr), kSuccess);
  for (const int64_t row : {0, 4, 6, 63}) {
    GateUp one{.rows = 1, .dim = 1536, .splits = 2};
    one.fill(row);
    ASSERT_EQ(activation(one.args(), nullptr), kSuccess);
    EXPECT_EQ(std::memcmp(one.out.get(), many.out.get() + row * many.out_stride, 1536 * 2), 0);
  }
}

TEST(CudaActivation, SaysWhenItWasNotLaunched) {
  GateUp gate_up{.rows = 1, .dim = 4, .splits = 1};
  gate_up.fill();
  emulator::fail_next_launch(2);
  EXPECT_EQ(activation(gate_up.args(), nullptr), 2);
  gate_up.rows = 0;
  EXPECT_EQ(activation(gate_up.args(), nullptr), kSuccess);
  EXPECT_TRUE(gate_up.out.is_untouched(0, gate_up.out.count()));
}

}  // namespace
}  // namespace sinkstream::cuda
