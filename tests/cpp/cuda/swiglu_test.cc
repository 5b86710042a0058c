#include "kernels/cuda/swiglu.h"

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

  SwigluArgs args() {
    return {.gate_up = {.data = partials.get(), .splits = splits, .rows = room, .stride = stride},
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

// Half a unit of bfloat16, and a little for the float32 before it. False for NaN.
bool is_near(float actual, float expected) {
  return std::abs(actual - expected) <= 0x1.01p-8f * std::abs(expected) + 1e-30f;
}

TEST(CudaSwiglu, IsTheDefinition) {
  ThreadPool pool(1);
  for (const int64_t dim : {4, 508, 512, 516, 1536, 14336}) {
    for (const int32_t splits : {1, 3}) {
      emulator::in_every_order([&](const emulator::Order& order) {
        GateUp gate_up{.rows = 3, .dim = dim, .splits = splits};
        gate_up.fill();
        ASSERT_EQ(swiglu(gate_up.args(), nullptr), kSuccess);
        for (int64_t row = 0; row < 3; ++row) {
          const std::vector<float> sums = gate_up.summed(row);
          std::vector<float> expected(dim);
          reference_kernels().swiglu({.gate = sums.data(),
                                      .up = sums.data() + dim,
                                      .out = expected.data(),
                                      .stride = dim,
                                      .rows = 1,
                                      .dim = dim},
                                     {&pool});
          for (int64_t i = 0; i < dim; ++i) {
            ASSERT_TRUE(is_near(to_float(gate_up.out[row * gate_up.out_stride + i]), expected[i]))
                << order.name << " dim " << dim << " row " << row << " column " << i << ": "
                << to_float(gate_up.out[row * gate_up.out_stride + i]) << ", " << expected[i];
          }
          EXPECT_TRUE(gate_up.out.is_untouched(row * gate_up.out_stride + dim, 4));
        }
      });
    }
  }
}

TEST(CudaSwiglu, IsFiniteWhereTheExponentialIsNot) {
  GateUp gate_up{.rows = 1, .dim = 4, .splits = 1};
  const float gates[] = {-200, -87, 87, 200};
  for (int64_t i = 0; i < 4; ++i) {
    gate_up.partials[i] = gates[i];
    gate_up.partials[4 + i] = 2;
  }
  ASSERT_EQ(swiglu(gate_up.args(), nullptr), kSuccess);
  const float expected[] = {0, -87 * std::exp(-87.0f) * 2, 174, 400};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(to_float(gate_up.out[i]), expected[i], std::abs(expected[i]) / 256) << i;
  }
}

TEST(CudaSwiglu, ARowIsTheSameInAnyCompany) {
  GateUp many{.rows = 64, .dim = 1536, .splits = 2};
  many.fill();
  many.partials[5 * many.stride] = std::nanf("");  // an idle row holds anything
  ASSERT_EQ(swiglu(many.args(), nullptr), kSuccess);
  for (const int64_t row : {0, 4, 6, 63}) {
    GateUp one{.rows = 1, .dim = 1536, .splits = 2};
    one.fill(row);
    ASSERT_EQ(swiglu(one.args(), nullptr), kSuccess);
    EXPECT_EQ(std::memcmp(one.out.get(), many.out.get() + row * many.out_stride, 1536 * 2), 0);
  }
}

TEST(CudaSwiglu, SaysWhenItWasNotLaunched) {
  GateUp gate_up{.rows = 1, .dim = 4, .splits = 1};
  gate_up.fill();
  emulator::fail_next_launch(2);
  EXPECT_EQ(swiglu(gate_up.args(), nullptr), 2);
  gate_up.rows = 0;
  EXPECT_EQ(swiglu(gate_up.args(), nullptr), kSuccess);
  EXPECT_TRUE(gate_up.out.is_untouched(0, gate_up.out.count()));
}

}  // namespace
}  // namespace sinkstream::cuda
