// Ops that treat every element alike, in place, on dense rows.
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

// out += scale · input
struct AddScaledArgs {
  const float* input = nullptr;  // [rows, dim]
  float scale = 1;
  float* out = nullptr;  // [rows, dim]; must not alias `input`
  int64_t rows = 0;
  int64_t dim = 0;
};

// x = cap · tanh(scale · x / cap), or scale · x without a cap
struct SoftCapArgs {
  float* values = nullptr;  // [rows, dim]
  int64_t rows = 0;
  int64_t dim = 0;
  float scale = 1;
  float cap = 0;  // above 0; 0: none
};

// x = min(max(x, −limit), limit); NaN stays NaN
struct ClampArgs {
  float* values = nullptr;  // [rows, dim]
  int64_t rows = 0;
  int64_t dim = 0;
  float limit = 0;  // above 0
};

using AddScaledOp = void(const AddScaledArgs&, const Launch&);
using SoftCapOp = void(const SoftCapArgs&, const Launch&);
using ClampOp = void(const ClampArgs&, const Launch&);

}  // namespace sinkstream
