// out[t] = scale · row ids[t] of the table, as float32.
#pragma once

#include "kernels/launch.h"
#include "kernels/packed_matrix.h"

namespace sinkstream {

struct EmbeddingArgs {
  const int32_t* ids = nullptr;  // [tokens], each in [0, table.rows)
  int64_t tokens = 0;
  PackedMatrix table;
  float* out = nullptr;  // [tokens, table.cols]
  float scale = 1;       // multiplies rows that were already rounded to float32
};

using EmbeddingOp = void(const EmbeddingArgs&, const Launch&);

}  // namespace sinkstream
