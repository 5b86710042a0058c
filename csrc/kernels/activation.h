// The nonlinearity of an MLP: out[r] = f(gate[r]) · up[r], or f(gate[r]) without `up`.
//
//   kSilu      f(x) = x / (1 + exp(−x)); with `up`: SwiGLU
//   kGelu      f(x) = x · Φ(x), with Φ(x) = erfc(−x / √2) / 2, the normal distribution
//   kGeluTanh  f(x) = x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))
//   kRelu2     f(x) = max(x, 0)²
//   kClampedSwiglu
//              f(x) = g · σ(1.702 · g), with g = min(x, 7); `up` becomes min(max(up, −7), 7) + 1
//   kXielu     f(x) = positive · x² + slope · x, if x > 0, otherwise
//              f(x) = negative · (e^min(x, knee) − 1 − x) + slope · x
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu2, kClampedSwiglu, kXielu };

// Of kClampedSwiglu.
inline constexpr float kSwigluLimit = 7, kSwigluSlope = 1.702f;

// Of kXielu.
struct Xielu {
  float positive = 0;
  float negative = 0;
  float slope = 0;
  float knee = 0;  // at most 0
};

struct ActivationArgs {
  const float* gate = nullptr;  // [rows, stride]
  const float* up = nullptr;    // [rows, stride]; null: out = f(gate)
  float* out = nullptr;         // [rows, stride]; may be `gate` or `up`
  int64_t stride = 0;           // floats from one row to the next, at least dim
  int64_t rows = 0;
  int64_t dim = 0;
  Activation kind = Activation::kSilu;
  Xielu xielu = {};
};

using ActivationOp = void(const ActivationArgs&, const Launch&);

}  // namespace sinkstream
