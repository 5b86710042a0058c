// out[r] = scale · the table's row for the token of row r, in float32. The first op of a step.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/linear/weights.h"

namespace sinkstream::cuda {

struct EmbeddingArgs {           // all pointers are to device memory; none alias
  const int32_t* ids = nullptr;  // [rows]: a token, or `sampled_by(seat)`
  int64_t rows = 0;              // at most 65535; 0 launches nothing
  TiledMatrix table;             // [vocab, hidden]
  float* out = nullptr;          // [rows, table.cols]
  // [seats], the token that each seat sampled last; null if no row refers to one.
  const int32_t* sampled = nullptr;
  float scale = 1;  // multiplies numbers that are already float32
};

// A value of EmbeddingArgs::ids that stands for sampled[seat], which the host does not know yet. A
// token outside the table gives a row of zeros.
constexpr int32_t sampled_by(int32_t seat) { return -1 - seat; }

Status embedding(const EmbeddingArgs& args, Stream stream);

}  // namespace sinkstream::cuda
