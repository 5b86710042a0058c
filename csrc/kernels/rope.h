// Rotates heads by given angles. Computes no angles: cache/angles.h does.
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

// Which two of the first `rotary_dim` dimensions are rotated together: d with d + rotary_dim/2, or
// 2d with 2d + 1. The other dimensions pass through.
enum class Pairing : uint8_t { kHalf, kInterleaved };

// One rotation per row (token): cosines and sines of the angles of its pairs.
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
  const float* factors = nullptr;  // [rows], each multiplies the heads of its row; null: none
};

using RopeOp = void(const RopeArgs&, const Launch&);

}  // namespace sinkstream
