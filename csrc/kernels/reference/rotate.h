// The rotation of one head, as the ops rope and append define it.
#pragma once

#include "kernels/rope.h"

namespace sinkstream::reference {

// Multiplies `head` [head_dim] by `factor` and rotates it by row r of `rotation` into `out`
// [head_dim], which may be `head`.
inline void rotate(const Rotation& rotation, int64_t r, const float* head, int64_t head_dim,
                   float* out, double factor = 1) {
  const int64_t pairs = rotation.rotary_dim / 2;
  const bool half = rotation.pairing == Pairing::kHalf;
  for (int64_t d = 0; d < pairs; ++d) {
    const int64_t first = half ? d : 2 * d;
    const int64_t second = half ? d + pairs : 2 * d + 1;
    const double cos = rotation.cos[r * pairs + d];
    const double sin = rotation.sin[r * pairs + d];
    const double x = factor * head[first];
    const double y = factor * head[second];
    out[first] = static_cast<float>(x * cos - y * sin);
    out[second] = static_cast<float>(y * cos + x * sin);
  }
  for (int64_t d = rotation.rotary_dim; d < head_dim; ++d) {
    out[d] = static_cast<float>(factor * head[d]);
  }
}

}  // namespace sinkstream::reference
