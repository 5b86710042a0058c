#include "kernels/cuda/expand.h"

#include <gtest/gtest.h>

#include "cuda/tiles.h"
#include "cuda_emulator/orders.h"
#include "kernels/cuda/stream.h"

namespace sinkstream::cuda {
namespace {

// Every number rounded once, and nothing else written: Bf16Rows are NaN of one kind before.
void expect_expanded(const Matrix& matrix, const char* order) {
  const Tiles tiles = tiles_of(matrix);
  const Bf16Rows out(matrix.rows, matrix.cols);
  ASSERT_EQ(expand({.weights = tiles.matrix, .out = out.row(0), .out_stride = out.stride}, nullptr),
            kSuccess);
  for (int64_t i = 0; i < (matrix.rows + 1) * out.stride; ++i) {
    const int64_t row = i / out.stride, col = i % out.stride;
    const bf16 number = out.row(0)[i];
    if (row < matrix.rows && col < matrix.cols) {
      ASSERT_EQ(to_float(number), to_float(to_bf16(static_cast<float>(matrix.plain[row][col]))))
          << name_of(tiles.matrix.type) << " row " << row << " of " << matrix.rows << " col " << col
          << " of " << matrix.cols << ", order " << order;
    } else {
      ASSERT_EQ(number.bits, 0xffff) << "row " << row << " col " << col;
    }
  }
}

TEST(Expand, RoundsEveryWeightOnceForEveryShape) {
  emulator::in_every_order([](const emulator::Order& order) {
    for (const Storage storage : kStorages) {
      for (const int64_t rows : {1, 15, 16, 17, 40}) {
        for (const int64_t cols : {32, 64, 96, 576}) {
          expect_expanded(random_matrix(storage, rows, cols, 1), order.name);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST(Expand, EndsRowsOfAnyLengthWhereTheyEnd) {
  for (const Storage storage : {Storage::kF32, Storage::kF16, Storage::kBF16}) {
    for (const int64_t cols : {1, 7, 8, 9, 63, 65, 521}) {
      expect_expanded(random_matrix(storage, 17, cols, 2), "forward");
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace sinkstream::cuda
