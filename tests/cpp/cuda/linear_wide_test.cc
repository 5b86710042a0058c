#include "kernels/cuda/linear/wide.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cuda/linear_call.h"
#include "cuda_emulator/block.h"
#include "cuda_emulator/orders.h"
#include "kernels/cuda/linear/plan.h"

namespace sinkstream::cuda {
namespace {

using emulator::in_orders_of_run;

// All of `input` through the kernel for few inputs.
std::vector<float> run_few(const TiledMatrix& matrix, const Bf16Rows& input, const float* bias,
                           int splits = 0) {
  std::vector<float> sums;
  for (int64_t first = 0; first < input.rows; first += kFewInputs) {
    const int64_t rows = std::min<int64_t>(kFewInputs, input.rows - first);
    const std::vector<float> some = run(matrix, input, first, rows, bias, splits);
    sums.insert(sums.end(), some.begin(), some.end());
  }
  return sums;
}

// Many inputs at once against few at a time, with a bias.
void expect_the_bits_of_few(Storage storage, int64_t rows, int64_t cols, int64_t inputs,
                            const char* order = "forward") {
  const Tiles tiles = tiles_of(random_matrix(storage, rows, cols, 1));
  const Bf16Rows input = random_bf16_rows(inputs, cols, 2);
  const std::vector<float> bias = random_floats(rows, 3);
  const std::vector<float> many = run(tiles, input, bias.data());
  const std::vector<float> few = run_few(tiles.matrix, input, bias.data());
  ASSERT_EQ(many.size(), few.size());
  for (size_t i = 0; i < many.size(); ++i) {
    ASSERT_EQ(float_bits(many[i]), float_bits(few[i]))
        << name_of(tiles.matrix.type) << " " << rows << " × " << cols << ", input " << i / rows
        << " of " << inputs << ", row " << i % rows << ", order " << order;
  }
}

// Rows of weights and inputs that end before, at and after the borders of tiles, warps and blocks.
TEST(CudaLinearWide, GivesEveryInputTheBitsThatItHasAmongFew) {
  constexpr int64_t kInputs[] = {65, 127, 128, 129, 200, 257};
  constexpr int64_t kRows[] = {1, 16, 33, 127, 130};
  size_t turn = 0;
  for (const Storage storage : kStorages) {
    for (const int64_t inputs : kInputs) {
      const int64_t rows = kRows[turn++ % std::size(kRows)];
      const bool is_code = is_quantized(weight_type_of(storage));
      expect_the_bits_of_few(storage, rows, is_code ? whole_blocks(storage, 96) : 71, inputs);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// One run whose last round of four tiles is short; several runs, of about one round and of more
// than two.
constexpr int64_t kOneRun = 448, kSplit = 1440, kLong = 4480;
static_assert(linear_splits(17, kOneRun) == 1 && col_tiles(kOneRun) == 7);
static_assert(linear_splits(17, kSplit) == 5 && first_tile(kSplit, 2, 5) == 4 + 5);
static_assert(linear_splits(17, kLong) == 8 && first_tile(kLong, 4, 8) == 8 + 9 + 9 + 9);

TEST(CudaLinearWide, GivesEveryInputTheBitsThatItHasAmongFewForEveryLength) {
  for (const Storage storage : kStorages) {
    const bool is_code = is_quantized(weight_type_of(storage));
    const int64_t short_cols = is_code ? 32 : 1, tail_cols = is_code ? 160 : 191;
    for (const int64_t cols : {short_cols, tail_cols, kOneRun, kSplit, kLong}) {
      expect_the_bits_of_few(storage, 17, whole_blocks(storage, cols), 66);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(CudaLinearWide, GivesEveryInputTheBitsThatItHasAmongFewInEveryOrder) {
  in_orders_of_run([](const emulator::Order& order) {
    for (const Storage storage : kStorages) {
      expect_the_bits_of_few(storage, 40, whole_blocks(storage, 480), 70, order.name);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

// GPUs of compute capability 8.6, 8.9 and 12.0: fewer bytes in flight, and no kernel for many
// inputs.
TEST(CudaLinearWide, AGpuWithLittleSharedMemoryGivesTheSameBits) {
  constexpr size_t kLittle = 99 * 1024;
  for (const Storage storage : kStorages) {
    const int64_t cols = whole_blocks(storage, 1440);
    const Tiles tiles = tiles_of(random_matrix(storage, 40, cols, 1));
    EXPECT_GT(linear_wide_bytes(tiles.matrix.type), kLittle);
    for (const int64_t inputs : {16, 32, 64, 150}) {
      const Bf16Rows input = random_bf16_rows(inputs, cols, 2);
      const std::vector<float> much = run(tiles, input);
      const emulator::SharedLimit limit(kLittle);
      EXPECT_EQ(run(tiles, input), much) << name_of(tiles.matrix.type) << ", " << inputs;
    }
  }
}

TEST(CudaLinearWide, KeepsNanOfOneInputFromTheOthers) {
  constexpr int64_t kRows = 17, kInputs = 130;
  for (const Storage storage : kStorages) {
    const int64_t cols = whole_blocks(storage, 128);
    const Tiles tiles = tiles_of(random_matrix(storage, kRows, cols, 4));
    const Bf16Rows input = random_bf16_rows(kInputs, cols, 5);
    const std::vector<float> clean = run(tiles, input);
    input.row(100)[70] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> mixed = run(tiles, input);
    for (int64_t i = 0; i < kInputs * kRows; ++i) {
      if (i / kRows == 100) {
        EXPECT_TRUE(std::isnan(mixed[i]));
      } else {
        EXPECT_EQ(float_bits(mixed[i]), float_bits(clean[i]));
      }
    }
  }
}

// Maps that read the same input but have different types are multiplied separately, with the splits
// of their combined shape, whatever their own would be.
TEST(CudaLinearWide, CutsAPartOfAMapAsTheWholeIsCut) {
  constexpr int64_t kCols = 1600;
  constexpr int kOfPart = linear_splits(20, kCols), kOfWhole = 2;
  static_assert(kOfPart != kOfWhole);
  const Tiles tiles = tiles_of(random_matrix(Storage::kBF16, 20, kCols, 6));
  const Bf16Rows input = random_bf16_rows(70, kCols, 7);
  const std::vector<float> many = run(tiles.matrix, input, 0, 70, nullptr, kOfWhole);
  EXPECT_EQ(many, run_few(tiles.matrix, input, nullptr, kOfWhole));
  EXPECT_NE(many, run_few(tiles.matrix, input, nullptr, kOfPart));  // it does make a difference
}

TEST(CudaLinearWide, AddsTheBiasOnce) {
  const Tiles zeros = empty_tiles(WeightType::kBFloat16, 17, kLong);
  const std::vector<float> bias = random_floats(17, 8);
  const std::vector<float> out = run(zeros, random_bf16_rows(70, kLong, 9), bias.data());
  for (int64_t i = 0; i < 70 * 17; ++i) EXPECT_EQ(out[i], bias[i % 17]);
}

}  // namespace
}  // namespace sinkstream::cuda
