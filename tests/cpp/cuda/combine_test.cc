#include "kernels/cuda/experts/combine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cuda/device_array.h"
#include "cuda_emulator/orders.h"
#include "kernels/matrix.h"
#include "kernels/table.h"
#include "kernels/tolerance.h"

namespace sinkstream::cuda {
namespace {

constexpr int64_t kChosen = 3;
constexpr int32_t kSplits = 2;

// Sums in two splits, with room between rows.
struct Split {
  Split(int64_t row_count, int64_t dim_count, uint32_t seed)
      : rows(row_count),
        dim(dim_count),
        stride((dim + 3) / 4 * 4 + 4),
        parts(kSplits * (rows + 1) * stride) {
    const auto numbers = random_floats(kSplits * rows * dim, seed);
    for (int64_t i = 0; i < kSplits * rows * dim; ++i) {
      const int64_t split = i / (rows * dim), row = i / dim % rows;
      parts[(split * (rows + 1) + row) * stride + i % dim] = numbers[i];
    }
  }
  Partials partials() const { return {parts.get(), kSplits, rows + 1, stride}; }
  std::vector<float> summed() const {
    std::vector<float> sums;
    for (int64_t i = 0; i < rows * dim; ++i) {
      const int64_t at = i / dim * stride + i % dim;
      sums.push_back(parts[at] + parts[(rows + 1) * stride + at]);
    }
    return sums;
  }

  int64_t rows, dim, stride;
  DeviceArray<float> parts;
};

// What experts returned, in an order that a router could have caused.
struct Outputs {
  Outputs(int64_t row_count, int64_t dim_count) : rows(row_count), dim(dim_count) {
    for (int64_t i = 0; i < rows * kChosen; ++i) {
      positions[i] = static_cast<int32_t>((i * 7 + 3) % (rows * kChosen));
      weights[i] = numbers[i];
    }
    for (int64_t row = 0; row < rows; ++row) tokens[row] = {.sequence = 0};
  }
  CombineArgs args(DeviceArray<float>* out) const {
    return {.outputs = outputs.partials(),
            .positions = positions.get(),
            .weights = weights.get(),
            .tokens = tokens.get(),
            .chosen = kChosen,
            .shared = shared.partials(),
            .shared_gate = gates.partials(),
            .out = out->get(),
            .rows = rows,
            .dim = dim};
  }

  int64_t rows, dim;
  Split outputs{rows * kChosen, dim, 1}, shared{rows, dim, 2}, gates{rows, 1, 3};
  std::vector<float> numbers = random_floats(rows * kChosen, 4);
  DeviceArray<int32_t> positions{rows * kChosen};
  DeviceArray<float> weights{rows * kChosen};
  DeviceArray<TokenRow> tokens{rows};
};

TEST(CudaCombine, MatchesTheReferenceWithAndWithoutEachTerm) {
  ThreadPool pool(1);
  for (const int64_t dim : {4, 36, 512, 516}) {
    const Outputs given(5, dim);
    const auto outputs = given.outputs.summed(), shared = given.shared.summed(),
               gates = given.gates.summed();
    for (int terms = 0; terms < 3; ++terms) {
      std::vector<float> expected(5 * dim);
      reference_kernels().combine({.outputs = outputs.data(),
                                   .positions = given.positions.get(),
                                   .weights = given.weights.get(),
                                   .chosen = kChosen,
                                   .shared = terms > 0 ? shared.data() : nullptr,
                                   .shared_gate = terms > 1 ? gates.data() : nullptr,
                                   .out = expected.data(),
                                   .rows = 5,
                                   .dim = dim},
                                  {&pool});
      double largest = 0;
      for (const float x : expected) largest = std::max(largest, std::abs(double{x}));
      emulator::in_orders_of_run([&](const emulator::Order& order) {
        DeviceArray<float> out(5 * dim);
        CombineArgs args = given.args(&out);
        if (terms < 1) args.shared = {};
        if (terms < 2) args.shared_gate = {};
        ASSERT_EQ(combine(args, nullptr), kSuccess);
        EXPECT_LE(worst_error(out.get(), expected.data(), 5 * dim, largest),
                  tolerance_of(DType::kFloat32))
            << order.name << ", dim " << dim << ", terms " << terms;
      });
    }
  }
}

// Sums of numbers whose order shows in their bits.
TEST(CudaCombine, AddsInTheRoutersOrderAndTheSharedExpertLast) {
  const Outputs given(1, 4);
  const auto outputs = given.outputs.summed(), shared = given.shared.summed();
  DeviceArray<float> out(4);
  CombineArgs args = given.args(&out);
  args.shared_gate = {};
  ASSERT_EQ(combine(args, nullptr), kSuccess);
  for (int64_t i = 0; i < 4; ++i) {
    float sum = 0;
    for (int64_t r = 0; r < kChosen; ++r) {
      sum = std::fma(given.weights[r], outputs[given.positions[r] * 4 + i], sum);
    }
    EXPECT_EQ(out[i], sum + shared[i]);
  }
}

TEST(CudaCombine, ARowIsTheSameInAnyCompanyAndAnIdleOneIsZero) {
  Outputs given(5, 516);
  DeviceArray<float> together(5 * 516), one(516), with_idle(5 * 516);
  ASSERT_EQ(combine(given.args(&together), nullptr), kSuccess);
  for (int64_t row = 0; row < 5; ++row) {
    CombineArgs args = given.args(&one);
    args.positions += row * kChosen;
    args.weights += row * kChosen;
    args.shared.data += row * args.shared.stride;
    args.shared_gate.data += row * args.shared_gate.stride;
    args.rows = 1;
    ASSERT_EQ(combine(args, nullptr), kSuccess);
    EXPECT_EQ(std::memcmp(one.get(), together.get() + row * 516, 516 * sizeof(float)), 0) << row;
  }
  given.tokens[2].sequence = -1;
  for (int64_t r = 0; r < kChosen; ++r) given.positions[2 * kChosen + r] = 1 << 30;  // not written
  ASSERT_EQ(combine(given.args(&with_idle), nullptr), kSuccess);
  for (int64_t i = 0; i < 5 * 516; ++i) {
    ASSERT_EQ(with_idle[i], i / 516 == 2 ? 0 : together[i]) << i;
  }
}

TEST(CudaCombine, SaysWhenItWasNotLaunched) {
  const Outputs given(1, 4);
  DeviceArray<float> out(4);
  CombineArgs args = given.args(&out);
  emulator::fail_next_launch(2);
  EXPECT_EQ(combine(args, nullptr), 2);
  args.rows = 0;
  EXPECT_EQ(combine(args, nullptr), kSuccess);
  EXPECT_TRUE(out.is_untouched(0, 4));
}

}  // namespace
}  // namespace sinkstream::cuda
