// out[r] = the table's row for the token of row r, as float32: what a step begins with.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/weights.h"
#include "kernels/cuda/stream.h"

namespace sinkstream::cuda {

struct EmbeddingArgs {               // all pointers lead to device memory; none of them alias
  const int32_t* ids = nullptr;      // [rows]: a token, or `sampled_by(i)`
  int64_t rows = 0;                  // at most 65535; 0 launches nothing
  TiledMatrix table;                 // [vocab, hidden]
  float* out = nullptr;              // [rows, table.cols]
  const int32_t* sampled = nullptr;  // the token that each place has drawn last; or null where no
                                     // row asks for one
};

// For EmbeddingArgs::ids: sampled[place], which the host does not know yet. A token outside of the
// table is a row of zeros.
constexpr int32_t sampled_by(int32_t place) { return -1 - place; }

Status embedding(const EmbeddingArgs& args, Stream stream);

}  // namespace sinkstream::cuda
