#include "kernels/cuda/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/dtype.h"
#include "cuda/device_array.h"
#include "cuda_emulator/orders.h"
#include "kernels/table.h"
#include "kernels/tolerance.h"

namespace sinkstream::cuda {
namespace {

using emulator::in_every_order;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_row(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(count);
  for (float& x : row) x = normal(random) * (random() % 50 == 0 ? 20.0f : 1.0f);
  return row;
}

// Rows of a residual stream and the output of a linear map for them, with spare rows and columns
// that are NaN.
struct Residual {
  int64_t rows, dim;
  int32_t splits;  // 0: no residual
  int64_t room = rows + 2, stride = dim + 8;
  DeviceArray<float> hidden{rows * dim}, partials{splits * room * stride}, weight{dim};
  DeviceArray<bf16> out{rows * dim};
  DeviceArray<float> out_float32{rows * dim};

  // Row r is row `first + r` of a stream of any size.
  void fill(int64_t first = 0) {
    const std::vector<float> weights = random_row(dim, 7);
    std::copy(weights.begin(), weights.end(), weight.get());
    for (int64_t r = 0; r < rows; ++r) {
      const auto seed = static_cast<uint32_t>(100 * (first + r));
      const std::vector<float> row = random_row(dim, seed);
      std::copy(row.begin(), row.end(), hidden.get() + r * dim);
      for (int32_t s = 0; s < splits; ++s) {
        const std::vector<float> part = random_row(dim, seed + s + 1);
        std::copy(part.begin(), part.end(), partials.get() + (s * room + r) * stride);
      }
    }
  }

  RmsNormArgs args() {
    return {.hidden = hidden.get(),
            .residual = {.data = splits > 0 ? partials.get() : nullptr,
                         .splits = splits,
                         .rows = room,
                         .stride = stride},
            .weight = weight.get(),
            .out = out.get(),
            .out_float32 = out_float32.get(),
            .rows = rows,
            .dim = dim,
            .eps = 1e-5f};
  }

  // The expected hidden numbers: splits are added first, in ascending order.
  std::vector<float> summed() const {
    std::vector<float> expected(rows * dim);
    for (int64_t i = 0; i < rows * dim; ++i) {
      expected[i] = hidden[i];
      if (splits == 0) continue;
      const float* part = partials.get() + i / dim * stride + i % dim;
      float sum = part[0];
      for (int32_t s = 1; s < splits; ++s) sum += part[s * room * stride];
      expected[i] += sum;
    }
    return expected;
  }
};

std::vector<float> normalized(const std::vector<float>& input, const float* weight, int64_t dim) {
  std::vector<float> out(input.size());
  ThreadPool pool(1);
  reference_kernels().rms_norm({.input = input.data(),
                                .input_stride = dim,
                                .weight = weight,
                                .out = out.data(),
                                .out_stride = dim,
                                .rows = static_cast<int64_t>(input.size()) / dim,
                                .dim = dim,
                                .eps = 1e-5f},
                               {&pool});
  return out;
}

TEST(CudaRmsNorm, IsTheDefinition) {
  for (const int64_t dim : {4, 124, 128, 132, 576, 1024, 2044, 2048, 2052, 4096, 14336}) {
    if (emulator::kFindsRaces && dim > 2052) continue;
    for (const int32_t splits : {0, 1, 3}) {
      in_every_order([&](const emulator::Order& order) {
        Residual stream{.rows = 3, .dim = dim, .splits = splits};
        stream.fill();
        const std::vector<float> before(stream.hidden.get(), stream.hidden.get() + 3 * dim);
        const std::vector<float> summed = stream.summed();
        const std::vector<float> expected = normalized(summed, stream.weight.get(), dim);
        ASSERT_EQ(rms_norm(stream.args(), nullptr), kSuccess);
        const std::string where = std::string(order.name) + " dim " + std::to_string(dim) +
                                  " splits " + std::to_string(splits);
        EXPECT_EQ(std::memcmp(stream.hidden.get(), summed.data(), stream.hidden.bytes()), 0)
            << where;
        double scale = 0;
        for (const float x : expected) scale = std::fmax(scale, std::abs(x));
        EXPECT_LT(worst_error(stream.out_float32.get(), expected.data(), 3 * dim, scale),
                  tolerance_of(DType::kFloat32))
            << where;
        for (int64_t i = 0; i < 3 * dim; ++i) {
          ASSERT_EQ(stream.out[i].bits, to_bf16(stream.out_float32[i]).bits) << where << " " << i;
        }
      });
    }
  }
}

TEST(CudaRmsNorm, ARowIsTheSameInAnyCompany) {
  Residual many{.rows = 64, .dim = 576, .splits = 4};
  many.fill();
  // Idle rows hold anything.
  for (int64_t i = 0; i < 576; ++i) many.hidden[7 * 576 + i] = kNan;
  ASSERT_EQ(rms_norm(many.args(), nullptr), kSuccess);
  for (const int64_t row : {0, 6, 8, 63}) {
    Residual one{.rows = 1, .dim = 576, .splits = 4};
    one.fill(row);
    ASSERT_EQ(rms_norm(one.args(), nullptr), kSuccess);
    EXPECT_EQ(std::memcmp(one.out_float32.get(), many.out_float32.get() + row * 576, 576 * 4), 0);
    EXPECT_EQ(std::memcmp(one.hidden.get(), many.hidden.get() + row * 576, 576 * 4), 0);
  }
}

TEST(CudaRmsNorm, WritesOnlyWhatIsAskedFor) {
  Residual stream{.rows = 2, .dim = 64, .splits = 0};
  stream.fill();
  const std::vector<float> before(stream.hidden.get(), stream.hidden.get() + 2 * 64);
  RmsNormArgs args = stream.args();
  args.out = nullptr;
  ASSERT_EQ(rms_norm(args, nullptr), kSuccess);
  EXPECT_TRUE(stream.out.is_untouched(0, 2 * 64));
  EXPECT_EQ(std::memcmp(before.data(), stream.hidden.get(), stream.hidden.bytes()), 0);
  const std::vector<float> expected(stream.out_float32.get(), stream.out_float32.get() + 2 * 64);
  args = stream.args();
  args.rows = 1;
  args.out_float32 = stream.hidden.get();  // in place
  ASSERT_EQ(rms_norm(args, nullptr), kSuccess);
  EXPECT_EQ(std::memcmp(expected.data(), stream.hidden.get(), 64 * 4), 0);
  EXPECT_EQ(std::memcmp(before.data() + 64, stream.hidden.get() + 64, 64 * 4), 0);
  EXPECT_TRUE(stream.out.is_untouched(64, 64));
}

TEST(CudaRmsNorm, ARowOfZerosStaysZero) {
  Residual stream{.rows = 1, .dim = 64, .splits = 0};
  stream.fill();
  std::fill(stream.hidden.get(), stream.hidden.get() + 64, 0.0f);
  ASSERT_EQ(rms_norm(stream.args(), nullptr), kSuccess);
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(stream.out_float32[i], 0.0f);
}

TEST(CudaRmsNorm, SaysWhenItWasNotLaunched) {
  Residual stream{.rows = 1, .dim = 64, .splits = 0};
  stream.fill();
  emulator::fail_next_launch(2);
  EXPECT_EQ(rms_norm(stream.args(), nullptr), 2);
  EXPECT_TRUE(stream.out.is_untouched(0, 64));
  RmsNormArgs none = stream.args();
  none.rows = 0;
  EXPECT_EQ(rms_norm(none, nullptr), kSuccess);
  EXPECT_TRUE(stream.out.is_untouched(0, 64));
}

}  // namespace
}  // namespace sinkstream::cuda
