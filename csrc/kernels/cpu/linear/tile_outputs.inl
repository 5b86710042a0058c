// The tile unit: what its kernels share, whatever their inputs are.
#pragma once

#include "kernels/cpu/linear/tile.inl"

// Inputs that stay in L2: half of what processors with the unit have. Each block of tokens reads
// all weights again, and memory soon limits the unit.
constexpr int64_t kTileCacheBytes = 1024 * 1024;

// Prefetches the outputs of tokens [begin, end), which are far apart and written soon.
SINKSTREAM_INLINE void prefetch_outputs(const Tile& tile, int64_t begin, int64_t end) {
  const int64_t last = end < tile.tokens ? end : tile.tokens;
  for (int64_t t = begin; t < last; ++t) {
    for (int64_t row = 0; row < tile.rows; row += kPanelRows) {
      __builtin_prefetch(tile.out + t * tile.out_stride + row, 1, 3);
    }
  }
}
