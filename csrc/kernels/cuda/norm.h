// Adds a linear map's output to the residual stream and normalizes the stream:
//   hidden[r] += scale · post(Σ residual[r]);   outs[i][r] = norm of hidden[r] with norms[i]
// Every layer begins and ends with it. Sums are float32, in an order that depends only on `dim`.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"
#include "kernels/norm.h"

namespace sinkstream::cuda {

struct NormArgs {           // all pointers are to device memory, 16-byte aligned
  float* hidden = nullptr;  // [rows, dim]; updated if there is a residual
  Partials residual = {};   // [splits][>= rows][stride >= dim], stride a multiple of 4; null data:
                            // nothing to add
  NormWeights post = {};    // of the residual, before it is added
  NormKind post_kind = NormKind::kRms;
  float post_eps = 0;        // above 0 if there is a `post`
  float residual_scale = 1;  // multiplies the residual, after its norm

  // Norms of `hidden` that differ in their weights only; without a weight, `hidden` itself.
  NormWeights norms[2];
  // bfloat16 [rows, dim] each, or null: nothing to write. None alias.
  void* outs[2] = {nullptr, nullptr};
  // bfloat16 [rows, dim]: what rounding took from the last of `outs`, rounded; or null. Aliases
  // nothing. Note: [Exact logits] of experts/route.h.
  void* rest = nullptr;
  NormKind kind = NormKind::kRms;
  float eps = 0;  // above 0 if a norm has a weight

  int64_t rows = 0;  // 0 launches nothing
  int64_t dim = 0;   // a multiple of 4 in [4, 32768]
};

Status norm(const NormArgs& args, Stream stream);

}  // namespace sinkstream::cuda
