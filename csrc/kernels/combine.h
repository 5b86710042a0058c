// Adds the outputs of a token's experts:
//   out = Σ_r weights[r] · outputs[position[r]] (+ σ(shared_gate) · shared) (+ the previous out)
// with r in the router's order, one rounding for each term; without `shared_gate` the factor is 1.
// So a token's sum does not depend on which tokens went through an expert with it.
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

struct CombineArgs {
  const float* outputs = nullptr;      // [rows · chosen, dim]: grouped by expert
  const int32_t* positions = nullptr;  // [rows, chosen]: rows of `outputs`
  const float* weights = nullptr;      // [rows, chosen]
  int64_t chosen = 0;                  // at least 1
  const float* shared = nullptr;       // [rows, dim], or null
  const float* shared_gate = nullptr;  // [rows], or null
  float* out = nullptr;                // [rows, dim]; aliases no input
  bool accumulate = false;             // adds to what `out` holds, last
  int64_t rows = 0;
  int64_t dim = 0;
};

using CombineOp = void(const CombineArgs&, const Launch&);

}  // namespace sinkstream
