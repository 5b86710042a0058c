// The rotation of one head, for rope, append and evict. Plain loops: the compiler vectorizes them,
// and elementwise expressions that are never contracted have the same bits either way.
#pragma once

// Rotates `head` [head_dim] by row r of `rotation` into `out` [head_dim], which must not alias it.
SINKSTREAM_INLINE void rotate(const Rotation& rotation, int64_t r, const float* __restrict head,
                              int64_t head_dim, float* __restrict out) {
  const int64_t pairs = rotation.rotary_dim / 2;
  const float* __restrict cos = rotation.cos + r * pairs;
  const float* __restrict sin = rotation.sin + r * pairs;
  if (rotation.pairing == Pairing::kHalf) {
    for (int64_t d = 0; d < pairs; ++d) {
      out[d] = head[d] * cos[d] - head[d + pairs] * sin[d];
      out[d + pairs] = head[d + pairs] * cos[d] + head[d] * sin[d];
    }
  } else {
    for (int64_t d = 0; d < pairs; ++d) {
      out[2 * d] = head[2 * d] * cos[d] - head[2 * d + 1] * sin[d];
      out[2 * d + 1] = head[2 * d + 1] * cos[d] + head[2 * d] * sin[d];
    }
  }
  for (int64_t d = rotation.rotary_dim; d < head_dim; ++d) out[d] = head[d];
}
