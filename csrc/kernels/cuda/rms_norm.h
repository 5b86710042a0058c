// Adds a linear map's output to the residual stream and normalizes it:
//   hidden[r] += Σ residual[r];   out[r] = weight · hidden[r] / sqrt(mean(hidden[r]²) + eps)
// Every layer begins and ends with it. Sums are float32, in an order that depends only on `dim`.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"

namespace sinkstream::cuda {

struct RmsNormArgs {        // all pointers are to device memory, 16-byte aligned
  float* hidden = nullptr;  // [rows, dim]; updated if there is a residual
  Partials residual;        // [splits][>= rows][stride >= dim], stride a multiple of 4; null data:
                            // nothing to add
  const float* weight = nullptr;  // [dim]
  void* out = nullptr;            // bfloat16 [rows, dim], or null
  float* out_float32 = nullptr;   // [rows, dim], or null; may be `hidden`. Nothing else aliases.
  int64_t rows = 0;               // 0 launches nothing
  int64_t dim = 0;                // a multiple of 4 in [4, 32768]
  float eps = 0;                  // above 0
};

Status rms_norm(const RmsNormArgs& args, Stream stream);

}  // namespace sinkstream::cuda
