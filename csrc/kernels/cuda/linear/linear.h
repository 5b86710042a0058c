// out[split][t][r] = Σ_k weights[r][k] · input[t][k] over the split's columns; the sum over splits
// is the linear map. With up to kFewInputs rows of input each weight is read from memory once. More
// rows are processed in blocks (wide.h) if the GPU has enough shared memory, else kFewInputs at a
// time.
//
// A row's result does not depend, bit for bit, on the other rows or their number: Note: [One order
// along K] of linear/plan.h. Weights of every type are multiplied without loss: Note: [Exact
// pieces] of tile_registers.cuh. Products are added in float32. Codes are summed per group of
// columns that share a scale; the group's sum is multiplied by its scale, and the sum of the
// group's inputs by its minimum.
//
// A call is one matrix, so its input and its rows are its own, as those of a LinearPart of
// kernels/linear.h may be. Experts, which multiply rows that only the GPU knows, have
// linear_grouped of linear/grouped.h.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/linear/plan.h"

namespace sinkstream::cuda {

struct LinearArgs {     // all pointers are to device memory
  TiledMatrix weights;  // rows and cols at least 1
  int32_t splits = 0;   // runs that K is cut into: linear_splits of the map's shape; `weights` may
                        // be some of its rows
  const float* bias = nullptr;  // [weights.rows], added in split 0; or null
  const void* input = nullptr;  // bfloat16 [rows, input_stride], 16-byte aligned; padding after a
                                // row's columns is not read
  int64_t input_stride = 0;     // a multiple of 8, at least weights.cols
  int64_t rows = 0;             // any number; 0 launches nothing
  // [splits][out_rows][out_stride], the Partials of device_types.h; aliases nothing. weights.rows
  // floats of each row are written; rows past `rows` are not.
  float* out = nullptr;
  int64_t out_rows = 0;    // at least `rows`
  int64_t out_stride = 0;  // at least weights.rows
};

Status linear(const LinearArgs& args, Stream stream);

}  // namespace sinkstream::cuda
