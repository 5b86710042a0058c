// out[r] = weight · input[r] / sqrt(mean(input[r]²) + eps), row by row.
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

struct RmsNormArgs {
  const float* input = nullptr;   // [rows, input_stride]
  int64_t input_stride = 0;       // floats from one row to the next, at least dim
  const float* weight = nullptr;  // [dim]
  float* out = nullptr;           // [rows, out_stride]; may be `input`
  int64_t out_stride = 0;
  int64_t rows = 0;
  int64_t dim = 0;
  float eps = 0;  // above 0
};

using RmsNormOp = void(const RmsNormArgs&, const Launch&);

}  // namespace sinkstream
