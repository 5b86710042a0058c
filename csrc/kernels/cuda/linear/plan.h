// How a linear map is divided among blocks of threads: arithmetic on shapes, for host and kernels.
//
// Note: [One order along K]
// The tiles of 64 columns along K are cut into `splits` runs, in ascending order. Within a run,
// warp k_warp of kWarpsAlongK takes tiles k_warp, k_warp + kWarpsAlongK, ... Each warp adds its
// tiles in ascending order, the block adds its warps in ascending order, and the reader adds the
// splits in ascending order. All of this depends only on the weights' shape, so a row's result does
// not depend on how many rows there are or what they hold. How many rows of weights or inputs a
// block takes, and when data is loaded, change no sum. With many inputs a single thread does the
// work of these warps: it adds tiles k_warp, k_warp + kWarpsAlongK, ... from zero, adds that to its
// total, and continues with the next k_warp.
#pragma once

#include "common/divide_up.h"
#include "kernels/cuda/linear/weights.h"

namespace sinkstream::cuda {

constexpr int kWarpsAlongK = 4;  // warps of a block that share its rows and its run of columns
constexpr int kRowWarps = 2;     // groups of kWarpsAlongK warps, each with its own rows
constexpr int kLinearThreads = kWarpsAlongK * kRowWarps * kWarpLanes;
// The maximum number of input rows that linear.cu takes at once; more go to wide.cu.
constexpr int kFewInputs = 64;
constexpr int kWideRows = 128;    // rows of weights in a block of wide.cu
constexpr int kWideInputs = 128;  // its rows of input
constexpr int kMostSplits = 8;

// How many runs K is cut into. The constants describe a GPU with 132 multiprocessors and are used
// on every GPU, so that results do not depend on the GPU.
//
// With few inputs a multiprocessor holds three blocks, and needs nearly all three to keep enough
// bytes in flight: 24 warps of 2 to 4 KiB each. Cost is counted in tiles along K: fewer than three
// blocks per multiprocessor take as long as three; starting and ending a block costs about two
// tiles (the first bytes arrive late, its warps' sums are added); every split is written and read
// once more. The result is 3 for 4096 × 4096 (384 blocks, 2.9 per multiprocessor), 1 for 28672 ×
// 4096 and 2 for 576 × 576.
constexpr int linear_splits(int64_t rows, int64_t cols) {
  constexpr int64_t kMultiprocessors = 132, kResident = 3, kStartTiles = 2;
  constexpr int64_t kRows = kRowWarps * kTileRows;  // of a block with few inputs
  const int64_t blocks = divide_up(rows, kRows), tiles = col_tiles(cols);
  int best = 1;
  int64_t best_cost = 0;
  for (int splits = 1; splits <= kMostSplits; ++splits) {
    if (splits > 1 && tiles / splits < kWarpsAlongK) break;  // a warp would have no tile
    const int64_t waves = divide_up(blocks * splits, kMultiprocessors);
    const int64_t run = divide_up(tiles, splits);
    const int64_t cost = (waves < kResident ? kResident : waves) * (run + kStartTiles) + splits;
    if (splits == 1 || cost < best_cost) best = splits, best_cost = cost;
  }
  return best;
}

// The first tile along K of run `split`, in [0, splits]; for `splits` itself, the end.
constexpr int first_tile(int64_t cols, int split, int splits) {
  return int(col_tiles(cols)) * split / splits;
}

}  // namespace sinkstream::cuda
