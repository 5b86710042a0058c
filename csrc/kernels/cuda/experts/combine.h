// Adds the outputs of a token's experts:
//   out = Σ_r weights[r] · outputs[position[r]] (+ σ(shared_gate) · shared)
// with r in the router's order, one rounding for each term; without `shared_gate` the factor is 1.
// So a token's sum does not depend on which tokens went through an expert with it.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"

namespace sinkstream::cuda {

struct CombineArgs {                   // all pointers are to device memory; none alias
  Partials outputs = {};               // [splits][rows · chosen][dim], by position
  const int32_t* positions = nullptr;  // [rows, chosen]
  const float* weights = nullptr;      // [rows, chosen]
  const TokenRow* tokens = nullptr;    // [rows]; the sum of an idle one is 0
  int64_t chosen = 0;                  // at least 1
  Partials shared = {};                // [splits][rows][dim], or null data
  Partials shared_gate = {};           // [splits][rows], or null data
  float* out = nullptr;                // [rows, dim]
  int64_t rows = 0;                    // 0 launches nothing
  int64_t dim = 0;  // a multiple of 4, as are the strides of `outputs` and `shared`
};

Status combine(const CombineArgs& args, Stream stream);

}  // namespace sinkstream::cuda
