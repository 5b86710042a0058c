// Turns heads by given angles. Computes no angle: positions live in cache/angles.h.
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

// Which two dimensions turn together, of the first `rotary_dim`: d with d + rotary_dim/2, or
// 2d with 2d + 1. Dimensions behind `rotary_dim` pass through.
enum class Pairing : uint8_t { kHalf, kInterleaved };

// One rotation for each row (token): pair d of row r turns by the angle with this cos and sin.
struct Rotation {
  const float* cos = nullptr;  // [rows, rotary_dim / 2]
  const float* sin = nullptr;  // [rows, rotary_dim / 2]
  int64_t rotary_dim = 0;      // even, at most head_dim
  Pairing pairing = Pairing::kHalf;
};

struct RopeArgs {
  const float* input = nullptr;  // [rows, input_stride], a row holds [heads, head_dim]
  int64_t input_stride = 0;      // floats from one row to the next
  float* out = nullptr;          // [rows, heads, head_dim], dense; must not alias `input`
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  Rotation rotation;
};

using RopeOp = void(const RopeArgs&, const Launch&);

}  // namespace sinkstream
