// The layout in which GPU kernels read a linear map's weights, and the conversion from the CPU's
// panels. Reads no files and needs no GPU.
//
// Note: [Tiles]
// A tile is 16 rows (output features) by 64 columns (input features), contiguous. The tiles of 16
// rows are stored in order along K, then those of the next 16 rows, so a warp that walks along K
// reads one address range. Rows and columns past the end are zero: for codes, code 0 with scale 0.
//
// Tensor cores take 16 columns at a time. Such a step is one A fragment, of which lane 4·group +
// pair holds four words; word r is the two numbers of
//   row group + 8 (r & 1), columns 2·pair + 8 (r >> 1) + {0, 1}       (Note: [Fragments],
//   tensor_core.cuh)
// A lane's share of a step is contiguous, and lanes are next to each other, 16 bytes each:
//
//   float32          [4 steps][2 halves h][32 lanes] of words 2h, 2h + 1: four numbers
//   float16          [4 steps][32 lanes] of four words
//   bfloat16         the same
//   int8             [2 groups][32 lanes] of two steps of two words; word h holds what words 2h and
//                    2h + 1 of the fragment do: number e of word 2h + j is byte j + 2e
//   int4             [32 lanes] of four steps of one word: number e of word r is the four bits from
//                    bit 4r + 16e on
//   int4 + minimum   the same
//
// Codes keep their meaning and bits from the panels (packed_matrix.h): int8 is two's complement,
// int4 is the number plus 8. The float16 scales follow the codes, those of each `group` of lanes
// together:
//
//   int8, int4       [8] of [2 groups of columns][2] scales, of rows group and group + 8
//   int4 + minimum   [8] of [2 groups of columns]: those 2 scales, then those rows' 2 minima
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/divide_up.h"
#include "kernels/packed_matrix.h"

namespace sinkstream::cuda {

constexpr int kWarpLanes = 32;
constexpr int kTileRows = 16;
constexpr int kTileCols = 64;
constexpr int kStepCols = 16;                        // of one A fragment
constexpr int kSteps = kTileCols / kStepCols;        // of a tile
constexpr int kTileGroups = kTileCols / int{kUnit};  // groups of columns that share a scale
constexpr int kGroupSteps = int{kUnit} / kStepCols;  // steps of such a group

constexpr int64_t row_tiles(int64_t rows) { return divide_up(rows, kTileRows); }
constexpr int64_t col_tiles(int64_t cols) { return divide_up(cols, kTileCols); }

// Bytes of a tile's numbers or codes; its scales follow them.
constexpr int64_t tile_code_bytes(WeightType type) {
  constexpr int64_t kNumbers = kTileRows * kTileCols;
  switch (type) {
    case WeightType::kFloat32: return kNumbers * 4;
    case WeightType::kFloat16:
    case WeightType::kBFloat16: return kNumbers * 2;
    case WeightType::kInt8: return kNumbers;
    case WeightType::kInt4:
    case WeightType::kInt4Minimum: return kNumbers / 2;
    default: return 0;
  }
}

// Whether GPU kernels read this type.
constexpr bool has_tiles(WeightType type) { return tile_code_bytes(type) > 0; }

// Float16 values per row and group of codes: a scale, and for some types a minimum.
constexpr int scales_per_group(WeightType type) {
  return type == WeightType::kInt4Minimum ? 2 : is_quantized(type) ? 1 : 0;
}

constexpr int64_t tile_bytes(WeightType type) {
  return tile_code_bytes(type) + kTileRows * kTileGroups * 2 * scales_per_group(type);
}

constexpr int64_t tiled_bytes(WeightType type, int64_t rows, int64_t cols) {
  return row_tiles(rows) * col_tiles(cols) * tile_bytes(type);
}

struct TiledMatrix {
  WeightType type = WeightType::kBFloat16;
  int64_t rows = 0;                  // output features
  int64_t cols = 0;                  // input features, K; a multiple of kUnit for codes
  const std::byte* tiles = nullptr;  // [row_tiles(rows)][col_tiles(cols)][tile_bytes(type)],
                                     // 128-byte aligned, in device memory

  constexpr const std::byte* tile(int64_t row_tile, int64_t col_tile) const {
    return tiles + (row_tile * col_tiles(cols) + col_tile) * tile_bytes(type);
  }
};

// Calls `visit`, a lambda with the type as its template argument, and returns its result: kernels
// are compiled per type.
template <typename Visit>
auto for_type(WeightType type, const Visit& visit) {
  switch (type) {
    case WeightType::kFloat32: return visit.template operator()<WeightType::kFloat32>();
    case WeightType::kFloat16: return visit.template operator()<WeightType::kFloat16>();
    case WeightType::kBFloat16: return visit.template operator()<WeightType::kBFloat16>();
    case WeightType::kInt8: return visit.template operator()<WeightType::kInt8>();
    case WeightType::kInt4: return visit.template operator()<WeightType::kInt4>();
    default: break;  // kInt4Minimum: no other type has tiles
  }
  return visit.template operator()<WeightType::kInt4Minimum>();
}

// Where a number is in a tile: `shift` bits up from byte `byte`. The shift is 0 except for four-bit
// codes, which share bytes.
struct TileOffset {
  int byte;
  int shift;
};

// Of the number at `row` in [0, kTileRows) and `col` in [0, kTileCols) of a tile.
constexpr TileOffset offset_in_tile(WeightType type, int row, int col) {
  const int lane = row % 8 * 4 + col % 8 / 2;
  const int step = col / kStepCols, half = col % kStepCols / 8, lower = row / 8, second = col % 2;
  const int word = lower + 2 * half;  // r of Note: [Tiles]
  switch (type) {
    case WeightType::kFloat32:
      return {(((step * 2 + half) * kWarpLanes + lane) * 4 + 2 * lower + second) * 4, 0};
    case WeightType::kFloat16:
    case WeightType::kBFloat16:
      return {((step * kWarpLanes + lane) * 4 + word) * 4 + 2 * second, 0};
    case WeightType::kInt8: {
      const int word_in_group = step % kGroupSteps * 2 + half;
      const int group = step / kGroupSteps;
      return {((group * kWarpLanes + lane) * 4 + word_in_group) * 4 + lower + 2 * second, 0};
    }
    case WeightType::kInt4:
    case WeightType::kInt4Minimum:
      return {(lane * 4 + step) * 4 + word / 2 + 2 * second, word % 2 * 4};
    default: return {0, 0};
  }
}

// Byte offset in a tile of the float16 scale of `row` for the group that `col` is in. Its minimum
// is 4 bytes after it.
constexpr int scale_in_tile(WeightType type, int row, int col) {
  const int group = col / int{kUnit};
  const int scales = scales_per_group(type) * 2;  // of one group, for two rows
  return int(tile_code_bytes(type)) + ((row % 8 * kTileGroups + group) * scales + row / 8) * 2;
}

// Writes the rows of `part` as rows [first_row, first_row + part.rows) of a tiled matrix of the
// same type and number of columns: parts that read one input (q, k and v; gate and up) become one
// matrix. `tiles` is in host memory and zero before the first part, so that padding stays zero.
// Threads may write different parts of a matrix if no tile is shared.
void tile_rows(const PackedMatrix& part, int64_t first_row, std::byte* tiles);

}  // namespace sinkstream::cuda
