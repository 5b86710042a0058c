// Calls a linear map, sums its splits, and checks that nothing else was written.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/tiles.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/guarded.h"

namespace sinkstream::cuda {

// The sums of all splits for rows [first, first + rows) of the input: [rows][matrix.rows]. Checks
// that padding after a row, rows past the last and the memory around are not written. `splits`: 0
// for those of the matrix's own shape.
inline std::vector<float> run(const TiledMatrix& matrix, const Bf16Rows& input, int64_t first,
                              int64_t rows, const float* bias = nullptr, int splits = 0) {
  if (splits == 0) splits = linear_splits(matrix.rows, matrix.cols);
  const int64_t out_rows = rows + 2, stride = matrix.rows + 3;
  Guarded out(splits * out_rows * stride, 1);
  const float untouched = out[0];  // a NaN whose bits no sum has
  EXPECT_EQ(linear({.weights = matrix,
                    .splits = splits,
                    .bias = bias,
                    .input = input.row(first),
                    .input_stride = input.stride,
                    .rows = rows,
                    .out = out.get(),
                    .out_rows = out_rows,
                    .out_stride = stride},
                   nullptr),
            kSuccess);
  EXPECT_TRUE(out.is_intact());
  std::vector<float> sums;
  for (int64_t i = 0; i < out_rows * stride; ++i) {
    float sum = out[i];
    for (int split = 1; split < splits; ++split) sum += out[split * out_rows * stride + i];
    if (i / stride < rows && i % stride < matrix.rows) {
      sums.push_back(sum);
    } else {
      for (int split = 0; split < splits; ++split) {
        EXPECT_TRUE(same_bits(&out[split * out_rows * stride + i], &untouched, 1))
            << "row " << i / stride << " column " << i % stride;
      }
    }
  }
  return sums;
}

inline std::vector<float> run(const Tiles& tiles, const Bf16Rows& input,
                              const float* bias = nullptr) {
  return run(tiles.matrix, input, 0, input.rows, bias);
}

}  // namespace sinkstream::cuda
