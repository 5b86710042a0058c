// The choice of experts for each token, and the weights of their outputs: kernels/route.h has the
// rules. Everything is computed in double, as on a CPU.
//
// Note: [Exact logits]
// Another expert costs more than a rounded sum, so a router's inputs keep more digits than other
// maps': it multiplies a token's input rounded to bfloat16, and what this rounding took, itself
// rounded. Together they have 16 significant bits. `logits` are the products of the former, `rests`
// those of the latter.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"
#include "kernels/route.h"

namespace sinkstream::cuda {

struct RouteArgs {                      // all pointers are to device memory; none alias
  Partials logits = {};                 // [splits][>= rows][stride >= experts]
  Partials rests = {};                  // likewise, to be added
  const float* bias = nullptr;          // [experts], of the logits; or null
  const float* choice_bias = nullptr;   // [experts], or null
  const float* expert_scale = nullptr;  // [experts], or null
  const TokenRow* tokens = nullptr;     // [rows]: an idle one chooses no expert
  int64_t rows = 0;                     // 0 launches nothing
  RouteRules rules;
  int32_t* ids = nullptr;    // [rows, chosen]; all different, or −1 if the row is idle
  float* weights = nullptr;  // [rows, chosen]; 0 if the row is idle
};

Status route(const RouteArgs& args, Stream stream);

}  // namespace sinkstream::cuda
