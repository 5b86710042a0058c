// Normalizes rows by their mean and variance, or by their mean square alone:
//
//   kRms    out[r] = weight · input[r] / sqrt(mean(input[r]²) + eps) + bias
//   kLayer  out[r] = weight · (input[r] − mean) / sqrt(mean((input[r] − mean)²) + eps) + bias
//
// A row is read twice for kLayer's two means, never E[x²] − mean², which cancels.
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

enum class NormKind : uint8_t { kRms, kLayer };

// A norm's vectors, as long as what it normalizes. Null: there is no norm, or none with a bias.
struct NormWeights {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

struct NormArgs {
  const float* input = nullptr;   // [rows, input_stride]
  int64_t input_stride = 0;       // floats from one row to the next, at least dim
  const float* weight = nullptr;  // [dim]
  const float* bias = nullptr;    // [dim]; null: none
  float* out = nullptr;           // [rows, out_stride]; may be `input`
  int64_t out_stride = 0;
  int64_t rows = 0;
  int64_t dim = 0;
  float eps = 0;  // above 0
  NormKind kind = NormKind::kRms;
};

using NormOp = void(const NormArgs&, const Launch&);

}  // namespace sinkstream
