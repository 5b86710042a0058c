// The kernel of linear maps for few inputs, which reads each weight once: `linear` and
// `linear_grouped` call it.
#pragma once

#include <algorithm>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/products.cuh"

namespace sinkstream::cuda {

// Shared memory that a block may use: on compute capability 9.0, and on every supported GPU.
constexpr size_t kLargeShared = 227 * 1024, kSmallShared = 99 * 1024;

// A kernel's constants, by format, number of fragments of eight inputs, and shared memory.
template <PanelFormat kFormat, int kInputTiles, size_t kMostShared>
struct Shape {
  // Row tiles per warp: with many inputs, loading their fragments for a single row tile would take
  // as long as its arithmetic.
  static constexpr int kRowTiles = kInputTiles < 4 ? 1 : 2;
  static constexpr int kBlockRows = kRowWarps * kRowTiles * kTileRows;

  // Blocks per multiprocessor. Three leave 80 registers per thread, two 128; sums of many inputs
  // and weights in pieces need more. With one, memory is idle while a block starts and ends.
  static constexpr int kResident = [] {
    const bool is_bf16 = kFormat.number == Number::kBFloat16;
    if (kFormat.number == Number::kFloat32 || kInputTiles == 8) return 1;
    if (kInputTiles == 4) return is_bf16 ? 2 : 1;
    if (is_bf16) return 3;
    return kFormat.number == Number::kFloat16 || kInputTiles == 2 ? 2 : 3;
  }();

  // A row of inputs in shared memory is 16 bytes longer than its chunk, so that the eight rows of a
  // fragment are in different banks.
  static constexpr int kPadding = 8;  // numbers

  // Tiles along K that a warp loads ahead: as many as fit in registers and whose inputs fit twice
  // in shared memory. Scales of two levels take registers to multiply.
  static constexpr int kRegistersPerTile = kRowTiles * TileRegisters<kFormat>::kWords;
  static constexpr int kFewRegisters = TileRegisters<kFormat>::kHeadWords > 0 ? 28 : 32;
  static constexpr int kRegisters =
      std::max(kInputTiles < 4 ? kFewRegisters : 64, kRegistersPerTile);
  static constexpr int kInputs = kInputTiles * 8;
  static constexpr int kMostChunkTiles =
      (int(kMostShared / (2 * sizeof(bf16))) / kInputs - kPadding) / kTileCols;
  static constexpr int kDepth = std::min(
      {kRegisters / kRegistersPerTile, kInputTiles == 8 ? 2 : 4, kMostChunkTiles / kWarpsAlongK});
  static_assert(kDepth >= 1);
  static constexpr int kRoundTiles = kDepth * kWarpsAlongK;

  // Inputs are staged in shared memory one chunk of columns at a time; the next chunk is copied
  // while the current one is used. Rows past the last input are garbage: a column of a product
  // depends only on that column of B.
  static constexpr int kChunkTiles = kInputTiles < 4 ? 16 / kRoundTiles * kRoundTiles : kRoundTiles;
  static_assert(kChunkTiles % kRoundTiles == 0);
  static constexpr int kChunkStride = kChunkTiles * kTileCols + kPadding;
  static constexpr int kChunk = kInputs * kChunkStride;  // numbers

  // Afterwards the same memory holds the warps' sums: [kWarpsAlongK][kInputs][kBlockRows], padded
  // so that a warp's four columns are eight banks apart.
  static constexpr int kSumsStride = kBlockRows + 4;
  static constexpr size_t kSharedBytes =
      std::max(size_t{2} * kChunk * sizeof(bf16),
               size_t{kWarpsAlongK} * kInputs * kSumsStride * sizeof(float));
  static_assert(kSharedBytes <= kMostShared && kSharedBytes * kResident <= kLargeShared);
};

// Copies all inputs' columns of kChunkTiles tiles along K from `first` on, or up to `end`. Columns
// past the last become zeros, like the weights there. `row_of(i)`: where the i-th input is.
template <typename S, typename RowOf>
__device__ inline void stage_inputs(bf16* chunk, const LinearArgs& args, int first, int end,
                                    const RowOf& row_of) {
  constexpr int kCopy = 8;  // numbers
  constexpr int kCopies = S::kChunkTiles * kTileCols / kCopy;
  const auto* input = static_cast<const bf16*>(args.input) + first * kTileCols;
  const int cols = int(args.weights.cols) - first * kTileCols;  // remaining
  const int staged = (end - first) * kTileCols;
  for (int i = int(threadIdx.x); i < int(args.rows) * kCopies; i += kLinearThreads) {
    const int row = i / kCopies, column = i % kCopies * kCopy;
    if (column >= staged) continue;
    bf16* to = chunk + row * S::kChunkStride + column;
    const bf16* from = input + row_of(row) * args.input_stride + column;
    if (column + kCopy <= cols) {
      copy_async(to, from);
    } else {
#pragma unroll 1
      for (int j = 0; j < kCopy; ++j) to[j] = column + j < cols ? from[j] : rounded<bf16>(0);
    }
  }
}

// Warps that share rows store their sums in shared memory; the block adds and writes them.
template <typename S, int kInputTiles>
__device__ void write_sums(const Sums<S::kRowTiles, kInputTiles>& sums, float* shared,
                           const LinearArgs& args) {
  const int lane = int(threadIdx.x) % kWarpSize, warp = int(threadIdx.x) / kWarpSize;
  float* mine = shared + (warp % kWarpsAlongK * S::kInputs + lane % 4 * 2) * S::kSumsStride +
                warp / kWarpsAlongK * S::kRowTiles * kTileRows + lane / 4;
#pragma unroll
  for (int t = 0; t < S::kRowTiles; ++t) {
#pragma unroll
    for (int i = 0; i < kInputTiles * 4; ++i) {
      const int input = i / 4 * 8 + i % 2, row = t * kTileRows + i % 4 / 2 * 8;
      mine[input * S::kSumsStride + row] = sums[t][i / 4][i % 4];
    }
  }
  __syncthreads();

  const int split = int(blockIdx.y);
  for (int i = int(threadIdx.x); i < int(args.rows) * S::kBlockRows; i += kLinearThreads) {
    const int input = i / S::kBlockRows;
    const int64_t row = int64_t{blockIdx.x} * S::kBlockRows + i % S::kBlockRows;
    if (row >= args.weights.rows) continue;
    const float* all = shared + input * S::kSumsStride + i % S::kBlockRows;
    float sum = all[0];
#pragma unroll
    for (int k_warp = 1; k_warp < kWarpsAlongK; ++k_warp)
      sum += all[k_warp * S::kInputs * S::kSumsStride];
    if (split == 0 && args.bias != nullptr) sum += args.bias[row];
    args.out[(split * args.out_rows + input) * args.out_stride + row] = sum;
  }
}

// A block takes kBlockRows rows of weights (x) and one split of K (y), and all inputs of `args`, at
// most S::kInputs. `row_of(i)`: the row of `args.input` that the i-th input is. Calls
// before_inputs() once the weights are on their way.
template <WeightType kType, int kInputTiles, size_t kMostShared, typename RowOf, typename Before>
__device__ inline void multiply_few(const LinearArgs& args, bf16* shared, const RowOf& row_of,
                                    const Before& before_inputs) {
  constexpr PanelFormat kFormat = format_of(kType);
  using S = Shape<kFormat, kInputTiles, kMostShared>;
  const int lane = int(threadIdx.x) % kWarpSize, warp = int(threadIdx.x) / kWarpSize;
  const int k_warp = warp % kWarpsAlongK;
  const TiledMatrix& weights = args.weights;
  const int begin = first_tile(weights.cols, int(blockIdx.y), args.splits);
  const int end = first_tile(weights.cols, int(blockIdx.y) + 1, args.splits);

  // This warp's row tiles. If only one is left, it is loaded twice; if none is, the warp has
  // nothing to do.
  const auto row_tile_count = int(row_tiles(weights.rows));
  const int row_tile = (int(blockIdx.x) * kRowWarps + warp / kWarpsAlongK) * S::kRowTiles;
  const int tiles =
      row_tile < row_tile_count ? (end - begin - k_warp + kWarpsAlongK - 1) / kWarpsAlongK : 0;
  const int row_bytes =
      row_tile + 1 < row_tile_count ? int(row_tile_bytes(kFormat, weights.cols, weights.block)) : 0;
  using Words = TileRegisters<kFormat>;
  const std::byte* next = weights.tiles;
  if (tiles > 0) next = weights.tile(kFormat, row_tile, begin + k_warp);
  // The next tile has the same place in its head's group, so its head is equally far away.
  static_assert(kWarpsAlongK % tiles_per_head(kFormat) == 0);
  constexpr int kAdvance = int(tile_offset(kFormat, kWarpsAlongK) - tile_offset(kFormat, 0));
  const int to_head = head_before(kFormat, begin + k_warp);
  [[maybe_unused]] int next_col = (begin + k_warp) * kTileCols;  // of `next`
  const auto load_next = [&](Words(&words)[S::kRowTiles]) {
    // nvcc takes that of the kernel for a variable.
    constexpr PanelFormat kFormat = format_of(kType);
    [[maybe_unused]] const std::byte* scales[kTileUnits];
    if constexpr (is_open(kFormat)) {
#pragma unroll
      for (int unit = 0; unit < kTileUnits; ++unit) {
        const int64_t col = next_col + unit * int{kUnit};
        scales[unit] = weights.rows_from(kFormat, row_tile) +
                       open_scales_offset(kFormat, weights.cols, weights.block, col);
      }
      next_col += kWarpsAlongK * kTileCols;
    }
#pragma unroll
    for (int t = 0; t < S::kRowTiles; ++t) {
      const std::byte* tile = next + t * row_bytes;
      if constexpr (is_open(kFormat)) {
        words[t].load_open(tile, {scales[0] + t * row_bytes, scales[1] + t * row_bytes}, lane);
      } else {
        words[t].load(tile, tile - to_head, lane);
      }
    }
    next += kAdvance;
  };

  Words ring[S::kDepth][S::kRowTiles];
#pragma unroll
  for (int d = 0; d < S::kDepth; ++d) {
    if (d < tiles) load_next(ring[d]);
  }
  before_inputs();

  int left = tiles;  // not used yet
  Sums<S::kRowTiles, kInputTiles> sums = {};
  const int chunks = (end - begin + S::kChunkTiles - 1) / S::kChunkTiles;
#pragma unroll 1
  for (int chunk = 0; chunk <= chunks; ++chunk) {
    if (chunk < chunks) {
      stage_inputs<S>(shared + chunk % 2 * S::kChunk, args, begin + chunk * S::kChunkTiles, end,
                      row_of);
    }
    copy_async_commit();
    if (chunk == 0) continue;

    copy_async_wait<1>();  // the previous chunk
    __syncthreads();
    const bf16* inputs = shared + (chunk - 1) % 2 * S::kChunk + k_warp * kTileCols +
                         lane % 8 * S::kChunkStride + lane / 8 * 8;
#pragma unroll 1
    for (int round = 0; round < S::kChunkTiles / S::kRoundTiles; ++round) {
#pragma unroll
      for (int d = 0; d < S::kDepth; ++d) {
        if (left <= 0) break;
#pragma unroll
        for (int unit = 0; unit < kTileUnits; ++unit) {
          const bf16* columns = inputs + d * kWarpsAlongK * kTileCols + unit * int{kUnit};
          add_products<S::kChunkStride, 1>(sums, ring[d], unit, columns);
        }
        if (left > S::kDepth) load_next(ring[d]);
        --left;
      }
      inputs += S::kRoundTiles * kTileCols;
    }
    __syncthreads();  // the chunk's memory is reused, by the chunk after next or by the sums
  }
  copy_async_wait<0>();
  write_sums<S, kInputTiles>(sums, reinterpret_cast<float*>(shared), args);
}

// Calls launch<kType, kInputTiles, kMostShared>() for the shared memory that this GPU has.
template <WeightType kType, int kInputTiles, typename Launch>
Status launch_few(const Launch& launch) {
  constexpr size_t kWanted = Shape<format_of(kType), kInputTiles, kLargeShared>::kSharedBytes;
  if constexpr (kWanted > kSmallShared) {
    if (shared_limit() >= kWanted) {
      return launch.template operator()<kType, kInputTiles, kLargeShared>();
    }
  }
  return launch.template operator()<kType, kInputTiles, kSmallShared>();
}

// The same for the smallest kernel that takes `inputs`, at most kFewInputs.
template <WeightType kType, typename Launch>
Status launch_few(int64_t inputs, const Launch& launch) {
  if (inputs <= 8) return launch_few<kType, 1>(launch);
  if (inputs <= 16) return launch_few<kType, 2>(launch);
  if (inputs <= 32) return launch_few<kType, 4>(launch);
  return launch_few<kType, 8>(launch);
}

}  // namespace sinkstream::cuda
