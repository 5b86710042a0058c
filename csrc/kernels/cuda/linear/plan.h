// How a linear map is cut into blocks of threads: plain arithmetic on shapes, for the host and for
// kernels.
//
// Note: [One order along K]
// The tiles of 64 columns along K are cut into `splits` runs, in rising order; of a run, warp
// `along` of kWarpsAlongK takes tiles along, along + kWarpsAlongK, ...; each warp adds its tiles in
// rising order, a block adds its warps in rising order, and whoever reads the splits adds them in
// rising order. All of it depends on the weights' shape alone, so that a row's result does not
// depend on how many rows there are or what they hold. How many rows of weights or inputs a block
// takes, and when what is loaded, change no sum. With many inputs one thread does by itself what
// those warps do: it adds tiles along, along + kWarpsAlongK, ... from zero, adds that to its total,
// and goes on with the next `along`.
#pragma once

#include "common/divide_up.h"
#include "kernels/cuda/linear/weights.h"

namespace sinkstream::cuda {

constexpr int kWarpsAlongK = 4;  // warps of a block that share its rows and its run of columns
constexpr int kRowWarps = 2;     // groups of kWarpsAlongK warps, each with rows of its own
constexpr int kLinearThreads = kWarpsAlongK * kRowWarps * kWarpLanes;
constexpr int kFewInputs = 64;    // rows of input that each weight is read once for; more of them
                                  // are taken in blocks
constexpr int kWideRows = 128;    // of weights, of such a block
constexpr int kWideInputs = 128;  // likewise
constexpr int kMostSplits = 8;

// Into how many runs K is cut. The figures are those of a GPU with 132 multiprocessors, and the
// same on every other, for a result that no GPU changes.
//
// A multiprocessor holds three blocks at a time with few inputs, and needs about all three to keep
// enough bytes in flight: 24 warps of 2 to 4 KiB each. So fewer than three blocks for each take as
// long as three would, in units of a tile along K; a block begins and ends at the cost of about two
// tiles (the first bytes come late, its warps' sums are added); and every split is written and read
// once more by somebody. For rows = 4096, cols = 4096 that makes 3 (384 blocks, 2.9 on each
// multiprocessor), for 28672 × 4096 it makes 1, for 576 × 576 it makes 2.
constexpr int linear_splits(int64_t rows, int64_t cols) {
  constexpr int64_t kMultiprocessors = 132, kResident = 3, kStartTiles = 2;
  constexpr int64_t kRows = kRowWarps * kTileRows;  // of a block with few inputs
  const int64_t blocks = divide_up(rows, kRows), tiles = col_tiles(cols);
  int best = 1;
  int64_t best_cost = 0;
  for (int splits = 1; splits <= kMostSplits; ++splits) {
    if (splits > 1 && tiles / splits < kWarpsAlongK) break;  // a warp without a tile
    const int64_t waves = divide_up(blocks * splits, kMultiprocessors);
    const int64_t run = divide_up(tiles, splits);
    const int64_t cost = (waves < kResident ? kResident : waves) * (run + kStartTiles) + splits;
    if (splits == 1 || cost < best_cost) best = splits, best_cost = cost;
  }
  return best;
}

// The first tile along K of run `split` in [0, splits]; of `splits` itself, the end.
constexpr int first_tile(int64_t cols, int split, int splits) {
  return int(col_tiles(cols)) * split / splits;
}

}  // namespace sinkstream::cuda
