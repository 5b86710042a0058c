// A causal convolution of each channel over the last `taps` inputs of its sequence:
//   x_t = input_t (· input_gate_t)
//   y_t = f(bias + Σ_k weight[channel][k] · x_{t − taps + 1 + k}) (· output_gate_t)
// Always `taps` products, added from the oldest to the newest. Before a sequence's first token, x
// is 0. f is x · σ(x) with `silu`, else the identity. So a token's outputs depend on its own and
// the taps − 1 inputs before it, and on nothing else: not on how the text was cut into spans.
//
// A state is what the next span needs: the last taps − 1 x, [taps − 1, channels], oldest first. At
// the beginning of a sequence it is zeros.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/state_span.h"

namespace sinkstream {

inline constexpr int64_t kMostTaps = 64;

struct ConvolveArgs {
  const float* input = nullptr;        // [rows, channels]
  const float* input_gate = nullptr;   // likewise, or null: 1
  const float* output_gate = nullptr;  // likewise, or null: 1
  int64_t stride = 0;                  // floats from a row of these three to the next
  const float* weight = nullptr;       // [channels, taps], the oldest input's first
  const float* bias = nullptr;         // [channels], or null: 0
  float* out = nullptr;                // [rows, channels], dense; aliases no input
  const StateSpan* spans = nullptr;    // [span_count]
  int64_t span_count = 0;
  int64_t channels = 0;
  int64_t taps = 0;  // in [2, kMostTaps]
  bool silu = false;
};

using ConvolveOp = void(const ConvolveArgs&, const Launch&);

}  // namespace sinkstream
