// SwiGLU: out[r] = silu(gate[r]) · up[r], with silu(x) = x / (1 + exp(−x)); gate and up come from
// one linear map, next to each other.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"

namespace sinkstream::cuda {

struct SwigluArgs {     // all pointers are to device memory
  Partials gate_up;     // [splits][>= rows][gate: dim | up: dim | …], 16-byte aligned, the stride
                        // a multiple of 4
  int64_t rows = 0;     // at most 65535; 0 launches nothing
  int64_t dim = 0;      // a multiple of 4
  void* out = nullptr;  // bfloat16 [rows, out_stride], 8-byte aligned; aliases nothing
  int64_t out_stride = 0;  // a multiple of 4, at least dim; columns past dim are not written
};

Status swiglu(const SwigluArgs& args, Stream stream);

}  // namespace sinkstream::cuda
