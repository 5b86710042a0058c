// What the kernels that walk over pages share: how many queries a block of threads takes, and their
// softmax over the pages so far.
#pragma once

#include "kernels/cuda/attention/tile.cuh"

namespace sinkstream::cuda {

constexpr int kMostWalkWarps = 4;   // per block, one tile each
constexpr int kLeastWalkWarps = 2;  // those without a tile only copy

// Wide heads get half as many, because shared memory limits their blocks.
constexpr int most_warps(int64_t head_dim) { return head_dim > 128 ? 2 : kMostWalkWarps; }

// The warps of a block that have a tile of a span's pairs.
constexpr int warps_with_tiles(int pairs, int head_dim) {
  const int tiles = (pairs + kTileRows - 1) / kTileRows;
  return tiles < most_warps(head_dim) ? tiles : most_warps(head_dim);
}

// The softmax over the pages so far, for the lane's two queries and its columns: sums[n][i] is
// column 8 n + 2 pair + (i & 1) of query i >> 1.
template <int kMostDim>
struct RunningSoftmax {
  SoftmaxState states[2];
  float sums[kMostDim / 8][4];
};

// Merges the next page. `staged`: its rows that any query of the block sees; `view`: those that the
// lane's queries see.
template <typename T, int kMostDim>
__device__ inline void merge_page(RunningSoftmax<kMostDim>& running,
                                  const SoftmaxState (&states)[2], const uint32_t (&weights)[4][4],
                                  const T* values, int head_dim, RowRange staged,
                                  const TileView& view) {
  Factors factors[2];
  bool sees_all = true;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    const RowRange& rows = view.rows[q];
    sees_all = sees_all && rows.begin == staged.begin && rows.end == staged.end;
    factors[q] = {1, 0};  // a page that a query does not see adds nothing
    if (rows.begin < rows.end) {
      factors[q] = factors_of(running.states[q].largest, states[q].largest);
      running.states[q] = {fmaxf(running.states[q].largest, states[q].largest),
                           merge(running.states[q].total, states[q].total, factors[q])};
    }
  }
  const bool all_see_all = __all_sync(kWarp, sees_all);
#pragma unroll
  for (int first = 0; first < kMostDim / 8; first += 4) {
    if (8 * first >= head_dim) break;
    float sums[4][4];
    multiply_values(sums, weights, values, head_dim, 8 * first);
    if (!all_see_all) {
      bool is_number = true;
#pragma unroll
      for (const auto& sum : sums) {
#pragma unroll
        for (const float x : sum) is_number = is_number && x == x;
      }
      if (!__all_sync(kWarp, is_number)) {
        multiply_values_separately(sums, weights, values, head_dim, 8 * first, view);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        running.sums[first + n][i] = merge(running.sums[first + n][i], sums[n][i], factors[i >> 1]);
      }
    }
  }
}

}  // namespace sinkstream::cuda
