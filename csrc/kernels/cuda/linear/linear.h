// out[split][t][r] = Σ_k weights[r][k] · input[t][k] over the split's columns, the sum over splits
// being the linear map. Up to kFewInputs rows of input, each weight is read from memory once; more
// are taken in blocks where the GPU has the shared memory for them, else kFewInputs at a time.
//
// A row's result does not depend on the other rows or on how many there are, bit for bit: Note:
// [One order along K] of linear/plan.h. Weights of every type are multiplied without loss, as the
// tensor cores take them: Note: [Exact pieces] of tile_registers.cuh. Products are added in
// float32: of numbers all along K, of codes afresh for each group of 32, whose sum is then
// multiplied by the scale, and likewise the sum of the group's inputs by the minimum.
#pragma once

#include "kernels/cuda/linear/plan.h"
#include "kernels/cuda/stream.h"

namespace sinkstream::cuda {

struct LinearArgs {             // all pointers lead to device memory
  TiledMatrix weights;          // rows and cols at least 1
  int32_t splits = 0;           // into how many runs K is cut: linear_splits of the shape of the
                                // map, of which `weights` may be some rows
  const float* bias = nullptr;  // [weights.rows], added in split 0; or null
  const void* input = nullptr;  // bfloat16 [rows, input_stride], 16-byte aligned; what lies behind
                                // the columns of a row is not read
  int64_t input_stride = 0;     // a multiple of 8, at least weights.cols
  int64_t rows = 0;             // any number; 0 launches nothing
  float* out =
      nullptr;  // [splits][out_rows][out_stride], the Partials of device_types.h; aliases nothing.
                // Of a row, weights.rows floats are written, and rows past `rows` are left alone.
  int64_t out_rows = 0;    // at least `rows`
  int64_t out_stride = 0;  // at least weights.rows
};

Status linear(const LinearArgs& args, Stream stream);

}  // namespace sinkstream::cuda
