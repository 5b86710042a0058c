#include "kernels/cuda/linear/wide.h"

#include <algorithm>

#include "common/divide_up.h"
#include "kernels/cuda/linear/products.cuh"

namespace sinkstream::cuda {

namespace {

// A block takes 128 rows of weights and 128 inputs; each of its eight warps takes 32 rows of
// weights, whose fragments are unpacked once, and 64 inputs.
constexpr int kRowTiles = 2;    // per warp
constexpr int kInputTiles = 8;  // fragments of eight inputs per warp
constexpr int kInputWarps = 2;  // next to each other along the inputs
constexpr int kThreads = kWideRows / (kRowTiles * kTileRows) * kInputWarps * kWarpSize;

// A row of inputs in shared memory is 16 bytes longer than a tile, so that the eight rows of a
// fragment are in different banks.
constexpr int kInputStride = kTileCols + 8;

constexpr int kWarpTiles = kRowTiles * kInputTiles;  // a thread has four sums of each
constexpr int kInterleaved = 2;  // fragments of inputs: add_numbers of linear/products.cuh

// A block's shared memory: a ring of stages, each a tile along K of weights and inputs, all but one
// being copied; then the totals that do not fit in registers.
template <PanelFormat kFormat>
struct Shared {
  // Codes need registers for the sums of a group, float32 for its pieces. Scales and minima of two
  // groups in a unit need more.
  static constexpr int kSharedQuads = needs_half_sums(kFormat) ? kWarpTiles * 3 / 4
                                      : is_coded(kFormat) || kFormat.number == Number::kFloat32
                                          ? kWarpTiles / 2
                                          : 0;
  static constexpr int kTotals = kSharedQuads * kThreads * int(sizeof(float4));

  // The part of a stage of 16 rows of weights: a tile, then its head, or the scales of the open
  // block of each of its units of columns.
  static constexpr int kScales =
      is_open(kFormat) ? kTileUnits * kOpenScaleBytes : head_bytes(kFormat);
  static constexpr int kTile = tile_bytes(kFormat) + kScales;
  static constexpr int kInputsAt = kWideRows / kTileRows * kTile;
  static constexpr int kStageBytes = kInputsAt + kWideInputs * kInputStride * int(sizeof(bf16));
  static constexpr int kMost = 163 * 1024;  // per block on an A100
  static constexpr int kStages = std::min(4, (kMost - kTotals) / kStageBytes);
  static_assert(kStages >= 2);

  static constexpr int kTotalsAt = kStages * kStageBytes;
  static constexpr size_t kBytes = kTotalsAt + kTotals;
};

// Walks over a block's run of tiles along K: k_warp, k_warp + kWarpsAlongK, ... for each k_warp.
// Note: [One order along K].
struct TileOrder {
  int begin, end;
  int k_warp = 0;
  int tile;  // the next one; `end` after the last

  __device__ explicit TileOrder(const LinearArgs& args)
      : begin(first_tile(args.weights.cols, int(blockIdx.z), args.splits)),
        end(first_tile(args.weights.cols, int(blockIdx.z) + 1, args.splits)),
        tile(begin) {}

  __device__ void advance() {
    tile += kWarpsAlongK;
    if (tile >= end && ++k_warp < kWarpsAlongK) tile = begin + k_warp;
  }
};

// Copies tiles along K to shared memory: each warp a tile of 16 rows of weights, every eight
// threads 64 columns of an input row. Columns past the last become zeros, like the weights there.
// Missing input rows and missing weight tiles stay garbage: an element of a product depends only on
// its own row and column.
template <PanelFormat kFormat>
class Loader {
 public:
  __device__ explicit Loader(const LinearArgs& args) : args_(args) {
    const int thread = int(threadIdx.x), warp = thread / kWarpSize;
    const int64_t row_tile = int64_t{blockIdx.y} * (kWideRows / kTileRows) + warp;
    weights_ = args.weights.rows_from(kFormat, row_tile) + thread % kWarpSize * kCopy;
    has_weights_ = row_tile < row_tiles(args.weights.rows);
    const int64_t first = int64_t{blockIdx.x} * kWideInputs + thread / kRowThreads;
    inputs_ = static_cast<const bf16*>(args.input) + first * args.input_stride + column();
    rows_ = int(args.rows - first < kWideInputs ? args.rows - first : kWideInputs);
  }

  __device__ void start_copy(int tile, std::byte* stage) const {
    const int thread = int(threadIdx.x), lane = thread % kWarpSize;
    if (has_weights_) {
      const std::byte* from = weights_ + tile_offset(kFormat, tile);
      std::byte* to = stage + thread / kWarpSize * Shared<kFormat>::kTile + lane * kCopy;
#pragma unroll
      for (int i = 0; i < kTile; i += kWarpSize * kCopy) {
        if (i + lane * kCopy < kTile) copy_async(to + i, from + i);
      }
      if constexpr (is_open(kFormat)) {
        constexpr int kLanes = kOpenScaleBytes / kCopy;  // of a unit
        const int unit = lane / kLanes, col = tile * kTileCols + unit * int{kUnit};
        const int64_t at =
            open_scales_offset(kFormat, args_.weights.cols, args_.weights.block, col);
        if (unit < kTileUnits) copy_async(to + kTile, weights_ + at - unit * kOpenScaleBytes);
      } else if constexpr (constexpr int kScales = Shared<kFormat>::kScales; kScales > 0) {
        if (lane * kCopy < kScales) copy_async(to + kTile, from - head_before(kFormat, tile));
      }
    }
    const int left = int(args_.weights.cols) - tile * kTileCols - column();  // columns remaining
    const bf16* from = inputs_ + int64_t{tile} * kTileCols;
    bf16* to = reinterpret_cast<bf16*>(stage + Shared<kFormat>::kInputsAt) +
               thread / kRowThreads * kInputStride + column();
    if (left >= kNumbers) {
#pragma unroll
      for (int i = 0; i < kWideInputs; i += kThreads / kRowThreads) {
        if (i < rows_) copy_async(to + i * kInputStride, from);
        from += kThreads / kRowThreads * args_.input_stride;
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < rows_; i += kThreads / kRowThreads) {
#pragma unroll 1
        for (int j = 0; j < kNumbers; ++j) {
          to[i * kInputStride + j] = j < left ? from[j] : rounded<bf16>(0);
        }
        from += kThreads / kRowThreads * args_.input_stride;
      }
    }
  }

 private:
  static constexpr int kTile = tile_bytes(kFormat);
  static constexpr int kCopy = 16;                            // bytes
  static constexpr int kNumbers = kCopy / int(sizeof(bf16));  // inputs per copy
  static constexpr int kRowThreads = kTileCols / kNumbers;

  static __device__ int column() { return int(threadIdx.x) % kRowThreads * kNumbers; }

  const LinearArgs& args_;
  const std::byte* weights_;  // this thread's part of the warp's 16 rows
  const bf16* inputs_;        // this thread's part of the block's
  int rows_;                  // existing input rows, from this thread's first on
  bool has_weights_;
};

using WarpSums = Sums<kRowTiles, kInputTiles>;

// Adds the products of one tile along K, for this warp's rows of weights and inputs.
template <PanelFormat kFormat>
__device__ inline void add_tile(WarpSums& sums, const std::byte* stage) {
  using S = Shared<kFormat>;
  using Words = TileRegisters<kFormat, 1>;
  const int lane = int(threadIdx.x) % kWarpSize, warp = int(threadIdx.x) / kWarpSize;
  const std::byte* weights = stage + warp / kInputWarps * kRowTiles * S::kTile;
  const bf16* inputs = reinterpret_cast<const bf16*>(stage + S::kInputsAt) +
                       (warp % kInputWarps * kInputTiles * 8 + lane % 8) * kInputStride +
                       lane / 8 * 8;
  // The compiler may interleave units of columns; units of codes need too many registers for that.
  [[maybe_unused]] constexpr int kMixed = is_coded(kFormat) ? 1 : kTileUnits;
#pragma unroll kMixed
  for (int unit = 0; unit < kTileUnits; ++unit) {
    Words tiles[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      const std::byte* tile = weights + t * S::kTile;
      tiles[t].load_staged(tile, tile + tile_bytes(kFormat), lane, unit);
    }
    add_products<kInputStride, kInterleaved>(sums, tiles, 0, inputs + unit * int{kUnit});
  }
}

// A thread's totals over the sums of each k_warp.
template <PanelFormat kFormat>
class Totals {
 public:
  __device__ explicit Totals(std::byte* shared)
      : shared_(reinterpret_cast<float4*>(shared + Shared<kFormat>::kTotalsAt) + threadIdx.x) {}

  __device__ void add(const WarpSums& sums, int k_warp) {
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
      const float(&sum)[4] = sums[i / kInputTiles][i % kInputTiles];
      float4 total = make_float4(sum[0], sum[1], sum[2], sum[3]);
      if (k_warp > 0) {
        const float4 before = quad(i);
        total.x = before.x + total.x, total.y = before.y + total.y;
        total.z = before.z + total.z, total.w = before.w + total.w;
      }
      if (i < kSharedQuads) {
        shared_[i * kThreads] = total;
      } else {
        registers_[i - kSharedQuads] = total;
      }
    }
  }

  // Of the fragment of row tile i / kInputTiles and inputs i % kInputTiles.
  __device__ float4 quad(int i) const {
    return i < kSharedQuads ? shared_[i * kThreads] : registers_[i - kSharedQuads];
  }

 private:
  static constexpr int kSharedQuads = Shared<kFormat>::kSharedQuads;

  float4 registers_[kWarpTiles - kSharedQuads];
  float4* shared_;  // in shared memory, private to this thread
};

// Eight rows of weights are adjacent in `out`: 32 bytes, one sector of the L2 cache.
template <PanelFormat kFormat>
__device__ inline void write_totals(const Totals<kFormat>& totals, const LinearArgs& args) {
  const int lane = int(threadIdx.x) % kWarpSize, warp = int(threadIdx.x) / kWarpSize;
  const int64_t row =
      int64_t{blockIdx.y} * kWideRows + warp / kInputWarps * kRowTiles * kTileRows + lane / 4;
  const int64_t input =
      int64_t{blockIdx.x} * kWideInputs + warp % kInputWarps * kInputTiles * 8 + lane % 4 * 2;
  const bool has_bias = blockIdx.z == 0 && args.bias != nullptr;
  float* out = args.out + (blockIdx.z * args.out_rows + input) * args.out_stride + row;
  const auto write = [&](int down, int right, float total) {
    if (row + down >= args.weights.rows || input + right >= args.rows) return;
    out[right * args.out_stride + down] = has_bias ? total + args.bias[row + down] : total;
  };
#pragma unroll
  for (int i = 0; i < kWarpTiles; ++i) {
    const int down = i / kInputTiles * kTileRows, right = i % kInputTiles * 8;
    const float4 quad = totals.quad(i);
    write(down, right, quad.x);
    write(down, right + 1, quad.y);
    write(down + 8, right, quad.z);
    write(down + 8, right + 1, quad.w);
  }
}

// A block takes kWideInputs rows of inputs (x), kWideRows rows of weights (y) and one split of K
// (z): concurrent blocks share weights.
template <WeightType kType>
__global__ void __launch_bounds__(kThreads, 1) linear_wide_kernel(LinearArgs args) {
  constexpr PanelFormat kFormat = format_of(kType);
  using S = Shared<kFormat>;
  DYNAMIC_SHARED(std::byte, shared);
  wait_for_previous();
  const Loader<kFormat> loader(args);
  TileOrder ahead(args);
  const auto load_next = [&](int stage) {
    if (ahead.tile < ahead.end) loader.start_copy(ahead.tile, shared + stage * S::kStageBytes);
    copy_async_commit();
    ahead.advance();
  };
#pragma unroll 1
  for (int stage = 0; stage < S::kStages - 1; ++stage) load_next(stage);

  const int warp = int(threadIdx.x) / kWarpSize;
  const bool has_work =
      int64_t{blockIdx.y} * kWideRows + warp / kInputWarps * kRowTiles * kTileRows <
          args.weights.rows &&
      int64_t{blockIdx.x} * kWideInputs + warp % kInputWarps * kInputTiles * 8 < args.rows;
  Totals<kFormat> totals(shared);
  int stage = 0;
#pragma unroll 1
  for (int k_warp = 0; k_warp < kWarpsAlongK; ++k_warp) {
    WarpSums sums = {};
#pragma unroll 1
    for (int tile = ahead.begin + k_warp; tile < ahead.end; tile += kWarpsAlongK) {
      copy_async_wait<S::kStages - 2>();
      __syncthreads();  // the tile has arrived, and the previous one is no longer read
      load_next(stage > 0 ? stage - 1 : S::kStages - 1);
      if (has_work) add_tile<kFormat>(sums, shared + stage * S::kStageBytes);
      stage = stage + 1 < S::kStages ? stage + 1 : 0;
    }
    totals.add(sums, k_warp);
  }
  if (has_work) write_totals(totals, args);
}

template <WeightType kType>
Status launch_type(const LinearArgs& args, Stream stream) {
  const auto input_blocks = unsigned(divide_up(args.rows, kWideInputs));
  const auto row_blocks = unsigned(divide_up(args.weights.rows, kWideRows));
  return launch(linear_wide_kernel<kType>, dim3(input_blocks, row_blocks, unsigned(args.splits)),
                dim3(kThreads), Shared<format_of(kType)>::kBytes, stream, args);
}

using Launch = Status(const LinearArgs& args, Stream stream);

}  // namespace

Status linear_wide(const LinearArgs& args, Stream stream) {
  static constexpr auto kLaunches =
      per_type<Launch*>([&]<WeightType kType>() { return launch_type<kType>; });
  return kLaunches[size_t(args.weights.type)](args, stream);
}

size_t linear_wide_bytes(WeightType type) {
  static constexpr auto kBytes =
      per_type<size_t>([&]<WeightType kType>() { return Shared<format_of(kType)>::kBytes; });
  return kBytes[size_t(type)];
}

}  // namespace sinkstream::cuda
