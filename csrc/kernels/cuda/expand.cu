#include "kernels/cuda/expand.h"

#include "kernels/cuda/tile_words.cuh"

namespace sinkstream::cuda {

namespace {

constexpr int kWarps = 8;  // tiles of a block, one behind the other along K

// Word `word` of the fragment of step `step`, as the bf16 that its numbers round to.
template <WeightType kType>
__device__ inline uint32_t rounded_numbers(const TileWords<kType>& tile, int step, int word,
                                           uint32_t piece) {
  if constexpr (is_quantized(kType)) {
    const float2 codes = bf16_floats(piece), scales = tile.scale(step / kGroupSteps);
    const float scale = word % 2 == 0 ? scales.x : scales.y;
    if constexpr (kType == WeightType::kInt4Minimum) {
      const float2 minima = tile.minimum(step / kGroupSteps);
      const float minimum = word % 2 == 0 ? minima.x : minima.y;
      return pack<bf16>(fmaf(scale, codes.x, minimum), fmaf(scale, codes.y, minimum));
    }
    return pack<bf16>(scale * codes.x, scale * codes.y);
  } else {
    return piece;  // the first of what makes up a number is the number rounded
  }
}

// A warp takes one tile: from its lanes' fragments to rows in shared memory, and out from there.
template <WeightType kType>
__global__ void __launch_bounds__(kWarps* kWarpSize) expand_kernel(ExpandArgs args) {
  // Rows are 16 bytes longer than they need, so that the eight of a fragment lie in different
  // banks.
  SHARED(uint32_t, pairs, [kWarps][kTileRows][kTileCols / 2 + 4]);
  const int lane = int(threadIdx.x) % kWarpSize, warp = int(threadIdx.x) / kWarpSize;
  const int64_t row_tile = blockIdx.x, col_tile = int64_t{blockIdx.y} * kWarps + warp;
  if (col_tile >= col_tiles(args.weights.cols)) return;

  using Words = TileWords<kType>;
  Words tile;
  tile.load(args.weights.tile(row_tile, col_tile) + Words::codes_at(lane),
            Words::scales_behind(lane));
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t pieces[pieces_of(kType)][4];
    unpack<kType>(tile, step, pieces);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      pairs[warp][lane / 4 + r % 2 * 8][step * 8 + r / 2 * 4 + lane % 4] =
          rounded_numbers<kType>(tile, step, r, pieces[0][r]);
    }
  }
  __syncwarp();

  constexpr int kCopy = 8;  // numbers, of which a row has as many for each of eight lanes
  const int64_t column = col_tile * kTileCols + lane % 8 * kCopy;
  auto* out = static_cast<bf16*>(args.out) + column;
#pragma unroll
  for (int i = lane / 8; i < kTileRows; i += kWarpSize / 8) {
    const int64_t row = row_tile * kTileRows + i;
    if (row >= args.weights.rows) break;
    const uint32_t* from = &pairs[warp][i][lane % 8 * (kCopy / 2)];
    if (column + kCopy <= args.weights.cols) {
      *reinterpret_cast<uint4*>(out + row * args.out_stride) =
          *reinterpret_cast<const uint4*>(from);
    } else {
      const auto* numbers = reinterpret_cast<const bf16*>(from);
      for (int j = 0; column + j < args.weights.cols; ++j) {
        out[row * args.out_stride + j] = numbers[j];
      }
    }
  }
}

template <WeightType kType>
Status expand_from(const ExpandArgs& args, Stream stream) {
  const auto col_blocks = unsigned((col_tiles(args.weights.cols) + kWarps - 1) / kWarps);
  return launch(expand_kernel<kType>, dim3(unsigned(row_tiles(args.weights.rows)), col_blocks),
                dim3(kWarps * kWarpSize), 0, stream, args);
}

}  // namespace

Status expand(const ExpandArgs& args, Stream stream) {
  switch (args.weights.type) {
    case WeightType::kFloat32: return expand_from<WeightType::kFloat32>(args, stream);
    case WeightType::kFloat16: return expand_from<WeightType::kFloat16>(args, stream);
    case WeightType::kBFloat16: return expand_from<WeightType::kBFloat16>(args, stream);
    case WeightType::kInt8: return expand_from<WeightType::kInt8>(args, stream);
    case WeightType::kInt4: return expand_from<WeightType::kInt4>(args, stream);
    case WeightType::kInt4Minimum: break;
  }
  return expand_from<WeightType::kInt4Minimum>(args, stream);
}

}  // namespace sinkstream::cuda
