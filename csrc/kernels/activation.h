// SwiGLU: out[r] = silu(gate[r]) · up[r], with silu(x) = x / (1 + exp(−x)).
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

struct SwigluArgs {
  const float* gate = nullptr;  // [rows, stride]
  const float* up = nullptr;    // [rows, stride]
  float* out = nullptr;         // [rows, stride]; may be `gate` or `up`
  int64_t stride = 0;           // floats from one row to the next, at least dim
  int64_t rows = 0;
  int64_t dim = 0;
};

using SwigluOp = void(const SwigluArgs&, const Launch&);

}  // namespace sinkstream
