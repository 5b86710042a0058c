// Weights as plain rows of bfloat16: out[r][k] = weights[r][k], each rounded once. Prefill's large
// matrix products read them so, a layer at a time. bfloat16 and codes with scales that are powers
// of two keep their value; all others lose what bfloat16 cannot hold, where `linear` does not.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/cuda/weights.h"

namespace sinkstream::cuda {

struct ExpandArgs {        // all pointers lead to device memory
  TiledMatrix weights;     // rows and cols at least 1
  void* out = nullptr;     // bfloat16 [weights.rows, out_stride], 16-byte aligned; of a row,
                           // weights.cols numbers are written
  int64_t out_stride = 0;  // a multiple of 8, at least weights.cols
};

Status expand(const ExpandArgs& args, Stream stream);

}  // namespace sinkstream::cuda
