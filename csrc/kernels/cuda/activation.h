// The middle of a feed-forward block: out[r] = f(gate[r]) · up[r], or f(up[r]) without a gate. Gate
// and up come from one linear map, next to each other.
#pragma once

#include "kernels/activation.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"

namespace sinkstream::cuda {

struct ActivationArgs {  // all pointers are to device memory
  // [splits][>= rows][gate: dim | up: dim | …], or [up: dim | …]; 16-byte aligned, the stride a
  // multiple of 4.
  Partials input = {};
  Activation activation = Activation::kSilu;
  bool is_gated = true;
  int64_t rows = 0;        // 0 launches nothing
  int64_t dim = 0;         // a multiple of 4
  void* out = nullptr;     // bfloat16 [rows, out_stride], 8-byte aligned; aliases nothing
  int64_t out_stride = 0;  // a multiple of 4, at least dim; columns past dim are not written
};

Status activation(const ActivationArgs& args, Stream stream);

}  // namespace sinkstream::cuda
