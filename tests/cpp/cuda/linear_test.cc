#include "kernels/cuda/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/linear_call.h"
#include "cuda_emulator/orders.h"
#include "kernels/guarded.h"
#include "kernels/linear.h"
#include "kernels/split_tensors.h"
#include "kernels/table.h"
#include "kernels/tolerance.h"

namespace sinkstream::cuda {
namespace {

using emulator::in_orders_of_run;

std::vector<float> run_reference(const Matrix& matrix, const Bf16Rows& input, const float* bias) {
  std::vector<float> floats(input.rows * input.cols), out(input.rows * matrix.rows);
  for (int64_t i = 0; i < input.rows * input.cols; ++i) {
    floats[i] = static_cast<float>(input.at(i / input.cols, i % input.cols));
  }
  const LinearPart part = {
      .weights = matrix.packed(), .bias = bias, .out = out.data(), .out_stride = matrix.rows};
  ThreadPool pool(1);
  const Panels scratch = make_panels(linear_scratch_bytes(input.rows, input.cols, pool.threads()));
  reference_kernels().linear({.input = floats.data(),
                              .input_stride = input.cols,
                              .tokens = input.rows,
                              .cols = input.cols,
                              .input_type = InputType::kBFloat16,
                              .parts = &part,
                              .part_count = 1,
                              .scratch = scratch.get()},
                             {&pool});
  return out;
}

// The largest Σ |weight · input| of any output: the scale of rounding errors.
double scale_of(const Matrix& matrix, const Bf16Rows& input) {
  double largest = 0;
  for (int64_t i = 0; i < input.rows; ++i) {
    for (const std::vector<double>& row : matrix.plain) {
      double sum = 0;
      for (int64_t col = 0; col < input.cols; ++col) sum += std::abs(row[col] * input.at(i, col));
      largest = std::max(largest, sum);
    }
  }
  return largest;
}

void compare(const Matrix& matrix, const Bf16Rows& input, const char* order) {
  const std::vector<float> bias = random_floats(matrix.rows, 7);
  const float* with = (matrix.rows + input.rows) % 2 == 0 ? bias.data() : nullptr;
  const std::vector<float> actual = run(tiles_of(matrix), input, with);
  const std::vector<float> expected = run_reference(matrix, input, with);
  ASSERT_LE(
      share_of_tolerance(actual.data(), expected.data(), input.rows * matrix.rows,
                         scale_of(matrix, input) + (with != nullptr ? 20 : 0), DType::kFloat32),
      1)
      << name_of(matrix.packed().type) << " " << matrix.rows << " × " << matrix.cols << ", "
      << input.rows << " inputs, order " << order;
}

std::vector<int64_t> cols_of(Storage storage) {
  if (row_of(storage).block == 1) return {1, 7, 32, 65, 576};
  if (row_of(storage).block == 32) return {32, 64, 96, 576};
  return {256, 768};
}

TEST(CudaLinear, EqualsTheReferenceForEveryShape) {
  constexpr int64_t kInputs[] = {1, 2, 3, 5, 8, 9, 16, 17, 32, 33, 63, 64};
  in_orders_of_run([&](const emulator::Order& order) {
    size_t turn = 0;
    for (const Storage storage : kStorages) {
      for (const int64_t rows : {1, 15, 17, 70}) {
        for (const int64_t cols : cols_of(storage)) {
          const int64_t inputs = kInputs[turn++ % std::size(kInputs)];
          compare(random_matrix(storage, rows, cols, 1), random_bf16_rows(inputs, cols, 2),
                  order.name);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST(CudaLinear, EqualsTheReferenceForEveryNumberOfInputs) {
  for (const Storage storage : kStorages) {
    const int64_t cols = whole_blocks(storage, 192);
    const Matrix matrix = random_matrix(storage, 40, cols, 3);
    for (const int64_t inputs : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64}) {
      compare(matrix, random_bf16_rows(inputs, cols, 4), "forward");
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Enough columns that a split has several chunks of inputs and each warp several rounds of loads.
constexpr int64_t kManyCols = 12800;
static_assert(first_tile(kManyCols, 1, linear_splits(17, kManyCols)) > 16 + kWarpsAlongK);

TEST(CudaLinear, EqualsTheReferenceWhereChunksFollowEachOther) {
  for (const Storage storage : kStorages) {
    const Matrix matrix = random_matrix(storage, 1, kManyCols, 5);
    for (const int64_t inputs : {12, 20, 33}) {
      compare(matrix, random_bf16_rows(inputs, kManyCols, 6), "forward");
      if (testing::Test::HasFatalFailure()) return;
    }
    in_orders_of_run([&](const emulator::Order& order) {
      compare(matrix, random_bf16_rows(3, kManyCols, 6), order.name);
    });
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(CudaLinear, EqualsTheReferenceForAVocabulary) {
  for (const Storage storage : {Storage::kBF16, Storage::kQ8_0}) {
    compare(random_matrix(storage, 49152, 32, 7), random_bf16_rows(3, 32, 8), "forward");
  }
}

TEST(CudaLinear, EqualsTheReferenceForManyInputs) {
  const Matrix matrix = random_matrix(Storage::kQ4_1, 33, 96, 9);
  for (const int64_t inputs : {65, 130}) {
    compare(matrix, random_bf16_rows(inputs, 96, 10), "forward");
  }
}

// The last and the first `count` of 64 inputs, and one alone, against all together.
void expect_the_same_bits(Storage storage, int64_t rows, int64_t cols,
                          const std::vector<int64_t>& counts) {
  constexpr int64_t kInputs = 64;
  const Tiles tiles = tiles_of(random_matrix(storage, rows, cols, 11));
  const Bf16Rows input = random_bf16_rows(kInputs, cols, 12);
  const std::vector<float> together = run(tiles, input);
  const auto expect_the_same = [&](int64_t first, int64_t count) {
    const std::vector<float> apart = run(tiles.matrix, input, first, count);
    ASSERT_TRUE(same_bits(apart.data(), &together[first * rows], count * rows))
        << name_of(tiles.matrix.type) << ": " << count << " inputs from " << first;
  };
  for (const int64_t alone : {40}) expect_the_same(alone, 1);
  for (const int64_t count : counts) {
    expect_the_same(kInputs - count, count);
    expect_the_same(0, count);
  }
}

TEST(CudaLinear, GivesAnInputTheSameBitsInEveryBatch) {
  for (const Storage storage : kStorages) {
    expect_the_same_bits(storage, 40, whole_blocks(storage, 320),
                         {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63});
    expect_the_same_bits(storage, 1, kManyCols, {3, 17});
  }
}

TEST(CudaLinear, GivesAnInputTheSameBitsInEveryRowAndNextToAnyOthers) {
  constexpr int64_t kRows = 17;
  for (const Storage storage : kStorages) {
    const int64_t cols = whole_blocks(storage, 320);
    const Tiles tiles = tiles_of(random_matrix(storage, kRows, cols, 13));
    const Bf16Rows one = random_bf16_rows(1, cols, 14);
    const std::vector<float> alone = run(tiles, one);
    for (const uint32_t others : {15u, 16u}) {
      const Bf16Rows input = random_bf16_rows(64, cols, others);
      for (const int64_t row : {0, 1, 6, 8, 17, 40, 63}) {
        const Bf16Rows mixed = random_bf16_rows(64, cols, others);
        std::memcpy(mixed.row(row), one.row(0), cols * 2);
        const std::vector<float> out = run(tiles, mixed);
        ASSERT_TRUE(same_bits(&out[row * kRows], alone.data(), kRows))
            << name_of(tiles.matrix.type) << " row " << row;
      }
    }
  }
}

TEST(CudaLinear, GivesARowOfWeightsTheSameBitsInEveryPlace) {
  constexpr int64_t kRows = 40;
  for (const Storage storage : kStorages) {
    const int64_t cols = whole_blocks(storage, 320);
    ASSERT_EQ(linear_splits(1, cols), linear_splits(kRows, cols));
    const Matrix matrix = random_matrix(storage, kRows, cols, 17);
    const Bf16Rows input = random_bf16_rows(9, cols, 18);
    const std::vector<float> all = run(tiles_of(matrix), input);
    const int64_t row_bytes = row_bytes_of(storage, cols);
    for (const int64_t row : {0, 8, 15, 16, 39}) {
      Matrix one = random_matrix(storage, 1, cols, 17);
      pack_rows(storage, matrix.source.data() + row * row_bytes, 0, 1, cols,
                (one.panels = make_panels(packed_bytes(one.packed().type, 1, cols))).get());
      const std::vector<float> alone = run(tiles_of(one), input);
      for (int64_t i = 0; i < 9; ++i) {
        ASSERT_EQ(float_bits(alone[i]), float_bits(all[i * kRows + row]))
            << name_of(one.packed().type) << " row " << row;
      }
    }
  }
}

// As in every kernel table of the CPU: SplitLinearTest of kernels/pack_split_test.cc.
TEST(CudaLinear, TheLengthOfAnOpenBlockChangesNoBit) {
  for (const Storage storage : {Storage::kInt4, Storage::kInt8, Storage::kFp8}) {
    const SplitTensors tensors = random_split_tensors(SplitLayout::kRows, storage, 128, 4);
    const SplitTensors repeated = with_short_groups(tensors);
    const Panels panels[] = {tensors.pack(nullptr, 1 << 20), repeated.pack(nullptr, 1 << 20)};
    const Tiles tiles[] = {tiles_of({tensors.matrix(panels[0])}),
                           tiles_of({repeated.matrix(panels[1])})};
    EXPECT_LT(tiled_bytes(tiles[0].matrix.type, kTensorRows, kTensorCols, 128),
              tiled_bytes(tiles[1].matrix.type, kTensorRows, kTensorCols, 32));
    for (const int64_t inputs : {1, 17, 64, 70}) {
      const Bf16Rows input = random_bf16_rows(inputs, kTensorCols, 5);
      EXPECT_EQ(run(tiles[0], input), run(tiles[1], input))
          << row_of(storage).name << ", " << inputs << " inputs";
    }
  }
}

// Input i is 1 in column i and 0 elsewhere.
Bf16Rows unit_rows(int64_t cols) {
  Bf16Rows input(cols, cols);
  for (int64_t i = 0; i < cols * cols; ++i) {
    input.row(i / cols)[i % cols] = to_bf16(i / cols == i % cols ? 1.0f : 0.0f);
  }
  return input;
}

// A single 1 in each input row picks a weight. float32 holds it exactly, except a code's product
// plus its minimum, which is rounded once.
TEST(CudaLinear, LosesNothingOfAWeight) {
  for (const Storage storage : kStorages) {
    const int64_t cols = whole_blocks(storage, 64);
    const Matrix matrix = random_matrix(storage, 33, cols, 19);
    const std::vector<float> out = run(tiles_of(matrix), unit_rows(cols));
    for (int64_t i = 0; i < cols * 33; ++i) {
      ASSERT_EQ(out[i], static_cast<float>(matrix.plain[i % 33][i / 33]))
          << name_of(matrix.packed().type) << " row " << i % 33 << " col " << i / 33;
    }
  }
}

TEST(CudaLinear, TakesEveryCode) {
  for (const Storage storage : {Storage::kQ8_0, Storage::kQ4_0, Storage::kQ4_1, Storage::kIQ4_NL,
                                Storage::kMXFP4, Storage::kInt4, Storage::kInt8, Storage::kFp8}) {
    const bool is_int8 =
        is_quantized(weight_type_of(storage)) && format_of(weight_type_of(storage)).bits == 8;
    const int64_t rows = is_int8 ? 256 : 16;
    Matrix matrix = random_matrix(storage, rows, 32, 20);
    const int64_t row_bytes = row_bytes_of(storage, 32);
    for (int64_t row = 0; row < rows; ++row) {  // every number of row c has code c
      std::byte* codes = &matrix.source[(row + 1) * row_bytes - (is_int8 ? 32 : 16)];
      const bool is_nan = storage == Storage::kFp8 && row % 128 == 127;  // refused by packing
      const int64_t code = is_nan ? row - 1 : row;
      std::memset(codes, static_cast<int>(is_int8 ? code : code * 17), is_int8 ? 32 : 16);
      matrix.plain[row] = dequantize_row(storage, &matrix.source[row * row_bytes], 32);
    }
    matrix.panels = make_panels(packed_bytes(matrix.packed().type, rows, 32));
    pack_rows(storage, matrix.source.data(), 0, rows, 32, matrix.panels.get());
    Bf16Rows input(32, 32);
    for (int64_t i = 0; i < 32 * 32; ++i) {
      input.row(i / 32)[i % 32] = to_bf16(i / 32 == i % 32 ? -2.0f : 0.0f);
    }
    const std::vector<float> out = run(tiles_of(matrix), input);
    for (int64_t i = 0; i < 32 * rows; ++i) {
      ASSERT_EQ(out[i], static_cast<float>(-2 * matrix.plain[i % rows][i / rows]));
    }
  }
}

// The first two are subnormal. From 253 on, numbers are infinite in float32, and packing
// refuses them.
TEST(CudaLinear, TakesEveryPowerOfTwo) {
  constexpr int64_t kPowers = 253;
  Matrix matrix = random_matrix(Storage::kMXFP4, kPowers, 32, 29);
  for (int64_t row = 0; row < kPowers; ++row) {
    std::byte* block = &matrix.source[row * row_bytes_of(Storage::kMXFP4, 32)];
    *block = static_cast<std::byte>(row);
    matrix.plain[row] = dequantize_row(Storage::kMXFP4, block, 32);
  }
  pack_rows(Storage::kMXFP4, matrix.source.data(), 0, kPowers, 32, matrix.panels.get());
  const std::vector<float> out = run(tiles_of(matrix), unit_rows(32));
  for (int64_t i = 0; i < 32 * kPowers; ++i) {
    ASSERT_EQ(out[i], static_cast<float>(matrix.plain[i % kPowers][i / kPowers]))
        << "power " << i % kPowers;
  }
}

TEST(CudaLinear, KeepsNanOfOneInputFromTheOthers) {
  for (const Storage storage : kStorages) {
    const int64_t cols = whole_blocks(storage, 128);
    const Tiles tiles = tiles_of(random_matrix(storage, 17, cols, 21));
    const Bf16Rows input = random_bf16_rows(12, cols, 22);
    const std::vector<float> clean = run(tiles, input);
    input.row(9)[70] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> mixed = run(tiles, input);
    for (int64_t i = 0; i < 12 * 17; ++i) {
      if (i / 17 == 9) {
        EXPECT_TRUE(std::isnan(mixed[i]));
      } else {
        EXPECT_EQ(float_bits(mixed[i]), float_bits(clean[i]));
      }
    }
  }
}

TEST(CudaLinear, AddsTheBiasOnce) {
  constexpr int64_t kCols = 1600;
  static_assert(linear_splits(17, kCols) > 2);
  const Tiles zeros = empty_tiles(WeightType::kBFloat16, 17, kCols);
  const std::vector<float> bias = random_floats(17, 23);
  const std::vector<float> out = run(zeros, random_bf16_rows(3, kCols, 24), bias.data());
  for (int64_t i = 0; i < 3 * 17; ++i) EXPECT_EQ(out[i], bias[i % 17]);
}

TEST(CudaLinear, WritesNothingForNoInputs) {
  const Tiles tiles = tiles_of(random_matrix(Storage::kBF16, 17, 64, 25));
  EXPECT_TRUE(run(tiles.matrix, random_bf16_rows(1, 64, 26), 0, 0).empty());
}

TEST(CudaLinear, PassesOnThatALaunchFailed) {
  const Tiles tiles = tiles_of(random_matrix(Storage::kBF16, 1, 8, 27));
  const Bf16Rows input = random_bf16_rows(65, 8, 28);
  std::vector<float> out(65);
  emulator::fail_next_launch(700);
  EXPECT_EQ(linear({.weights = tiles.matrix,
                    .splits = 1,
                    .input = input.row(0),
                    .input_stride = input.stride,
                    .rows = 65,
                    .out = out.data(),
                    .out_rows = 65,
                    .out_stride = 1},
                   nullptr),
            700);
}

TEST(LinearPlan, CutsKIntoRunsThatGiveEveryWarpATile) {
  for (int64_t rows = 1; rows < 40000; rows += rows / 2 + 1) {
    for (int64_t cols = 1; cols < 20000; cols += cols / 3 + 1) {
      const int splits = linear_splits(rows, cols);
      ASSERT_GE(splits, 1);
      ASSERT_LE(splits, kMostSplits);
      ASSERT_EQ(first_tile(cols, 0, splits), 0);
      ASSERT_EQ(first_tile(cols, splits, splits), col_tiles(cols));
      for (int split = 0; split < splits && splits > 1; ++split) {
        ASSERT_GE(first_tile(cols, split + 1, splits) - first_tile(cols, split, splits),
                  kWarpsAlongK);
      }
    }
  }
}

// These determine a model's bits: a change shows in every output.
TEST(LinearPlan, KeepsTheSplitsOfKnownShapes) {
  EXPECT_EQ(linear_splits(576, 576), 2);
  EXPECT_EQ(linear_splits(576, 1536), 6);
  EXPECT_EQ(linear_splits(49152, 576), 1);
  EXPECT_EQ(linear_splits(4096, 4096), 3);
  EXPECT_EQ(linear_splits(4096, 14336), 3);
  EXPECT_EQ(linear_splits(28672, 4096), 1);
}

}  // namespace
}  // namespace sinkstream::cuda
