// The layout in which GPU kernels read a linear map's weights, and the conversion from the CPU's
// panels. Reads no files and needs no GPU.
//
// Note: [Tiles]
// A tile is 16 rows (output features) by 64 columns (input features), contiguous. The tiles of 16
// rows are stored in order along K, then those of the next 16 rows, so a warp that walks along K
// reads one address range. Rows and columns past the end are zero: for codes, code 0 with scale 0.
//
// Tensor cores take 16 columns at a time. Such a step is one A fragment, of which lane 4·group +
// pair holds four words; word r is the two numbers e = 0, 1 of
//   row group + 8 (r & 1), columns 2·pair + 8 (r >> 1) + {0, 1}       (Note: [Fragments],
//   tensor_core.cuh)
//
// Bits. A lane's share of a tile is 32 numbers of b bits: b words. Number e of word r of step s is
// in half e of its word, so that one shift and one mask give both: with n = 4s + r, it is b bits
// from bit b·(n mod 16/b) + 16e of word n·b/16 on; of 32 bits, it is word 2n + e. For b = 3, 5 and
// 6 the number's low 2, 4 and 4 bits are stored in this way, as one plane, and its high 1, 1 and 2
// bits as a second plane after it. In a plane, four words of a lane (or all, if there are fewer)
// are contiguous, and lanes are next to each other: [words / 4][32 lanes][4 words].
//
// Codes keep their meaning and bits from the panels (packed_matrix.h): of 8 bits, two's complement.
//
// Scales follow the planes. Of each `group` of lanes they are contiguous:
//   [8] of [groups of columns][fields][2] numbers, of rows group and group + 8
// The fields are the scale and, if there is one, the minimum: numbers of `field_bytes` bytes.
// Types with two levels have the float16 of 256 columns in a head, before the four tiles of these
// columns: [8] of [halves][2] float16, of rows group and group + 8.
//
// Open blocks have any length, so their scales are not in the tiles: they follow all tiles of the
// 16 rows, [blocks] of [8][2] words, of rows group and group + 8. A word is a float32, or of types
// with a zero point its upper 19 bits and, in the lowest, the zero point. If the last tile has
// columns past the end, a block of zeros is the last.
//
// Bits per weight:
//   as in the file   int8 8.5, int4 4.5, int4_minimum 5, int5 5.5, int5_minimum 6, q2_k 2.625,
//                    q6_k 6.5625, iq4_nl 4.5, mxfp4 4.25
//   times 1.015      iq4_xs 4.3125: scales of six bits take a byte
//   times 1.023      q5_k 5.625, likewise
//   times 1.028      q4_k 4.625
//   times 1.036      q3_k 3.5625
//   open             int4_zero, int8_zero and e4m3: 4 or 8, and 32 for each block. With blocks of
//                    128 columns that is 1.015, 1 and 1 times the panels'
// With the float16 in every tile instead of a head, q4_k would take 5 bits, 1.11 times the file's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "common/divide_up.h"
#include "common/power_of_two.h"
#include "kernels/packed_matrix.h"

namespace sinkstream::cuda {

constexpr int kWarpLanes = 32;
constexpr int kTileRows = 16;
constexpr int kTileCols = 64;
constexpr int kStepCols = 16;                       // of one A fragment
constexpr int kSteps = kTileCols / kStepCols;       // of a tile
constexpr int kTileUnits = kTileCols / int{kUnit};  // units of columns: kernels take one at a time
constexpr int kUnitSteps = int{kUnit} / kStepCols;  // steps of a unit

constexpr int64_t row_tiles(int64_t rows) { return divide_up(rows, kTileRows); }
constexpr int64_t col_tiles(int64_t cols) { return divide_up(cols, kTileCols); }

// Bits of a number or code, and how planes share them.
constexpr int number_bits(const PanelFormat& format) {
  switch (format.number) {
    case Number::kFloat32: return 32;
    case Number::kFloat16:
    case Number::kBFloat16: return 16;
    case Number::kCode: break;
  }
  return format.bits;
}
constexpr int low_bits(const PanelFormat& format) {
  return int(power_of_two_below(number_bits(format)));
}
constexpr int high_bits(const PanelFormat& format) {
  return number_bits(format) - low_bits(format);
}

// Bytes of a tile's plane of `bits` bits; a lane has `bits` words of it.
constexpr int plane_bytes(int bits) { return bits * kWarpLanes * 4; }

// Bytes of a tile's numbers or codes; its scales follow them.
constexpr int tile_code_bytes(const PanelFormat& format) {
  return plane_bytes(number_bits(format));
}

struct ScaleFields {
  int halves;       // float16 per row in a head
  int fields;       // numbers per row and group of columns in a tile: scale, minimum
  int field_bytes;  // of such a number: float16 or a byte
};

constexpr ScaleFields scale_fields(const PanelFormat& format) {
  switch (format.scales) {
    case Scales::kNone: return {0, 0, 0};
    case Scales::kHalf: return {0, 1, 2};
    case Scales::kHalfMinimum: return {0, 2, 2};
    case Scales::kTwoLevel: return {1, 1, 1};
    case Scales::kTwoLevelMinimum: return {2, 2, 1};
    case Scales::kNibbles: return {2, 1, 1};  // the field has both
    case Scales::kPower: return {0, 1, 1};
    case Scales::kFloat:
    case Scales::kZeroPoint24:
    case Scales::kZeroPoint32: break;  // of open blocks: not in a tile
  }
  return {};
}

// Of one `group` of lanes: a tile's scales, and a head.
constexpr int lane_scale_bytes(const PanelFormat& format) {
  const ScaleFields scales = scale_fields(format);
  return kTileCols / format.group * scales.fields * scales.field_bytes * 2;
}
constexpr int lane_head_bytes(const PanelFormat& format) { return scale_fields(format).halves * 4; }

constexpr int tile_bytes(const PanelFormat& format) {
  return tile_code_bytes(format) + kTileRows / 2 * lane_scale_bytes(format);
}
constexpr int head_bytes(const PanelFormat& format) {
  return kTileRows / 2 * lane_head_bytes(format);
}

// Tiles that share a head.
constexpr int tiles_per_head(const PanelFormat& format) {
  return head_bytes(format) == 0 ? 1 : format.block / kTileCols;
}

// Of 16 rows, in an open block.
constexpr int kOpenScaleBytes = kTileRows * 4;

// Where the scales of the open block that column `col` is in begin, in their 16 rows. `open`: the
// block's columns. `col` may be one past the end, in the last tile.
constexpr int64_t open_scales_offset(const PanelFormat& format, int64_t cols, int64_t open,
                                     int64_t col) {
  return col_tiles(cols) * tile_bytes(format) + int(col) / int(open) * kOpenScaleBytes;
}

// Bytes of 16 rows. `open`: PackedMatrix::block.
constexpr int64_t row_tile_bytes(const PanelFormat& format, int64_t cols, int64_t open = kUnit) {
  if (is_open(format)) {
    const int64_t past = cols % kTileCols == 0 ? 0 : kOpenScaleBytes;
    return open_scales_offset(format, cols, open, cols) + past;
  }
  const int64_t heads = col_tiles(cols) / tiles_per_head(format);
  return col_tiles(cols) * tile_bytes(format) + heads * head_bytes(format);
}

constexpr int64_t tiled_bytes(WeightType type, int64_t rows, int64_t cols, int64_t open = kUnit) {
  return row_tiles(rows) * row_tile_bytes(format_of(type), cols, open);
}

// Where tile `col_tile` begins in its 16 rows. Its head is `head_before` bytes before it.
constexpr int64_t tile_offset(const PanelFormat& format, int64_t col_tile) {
  const int64_t heads = col_tile / tiles_per_head(format) + 1;
  return col_tile * tile_bytes(format) + heads * head_bytes(format);
}
constexpr int head_before(const PanelFormat& format, int64_t col_tile) {
  return int(col_tile % tiles_per_head(format)) * tile_bytes(format) + head_bytes(format);
}

struct TiledMatrix {
  WeightType type = WeightType::kBFloat16;
  int64_t rows = 0;                  // output features
  int64_t cols = 0;                  // input features, K; a multiple of the block for codes
  const std::byte* tiles = nullptr;  // [row_tiles(rows)][row_tile_bytes], 128-byte aligned, in
                                     // device memory
  int64_t block = kUnit;             // PackedMatrix::block
  const int32_t* order = nullptr;    // PackedMatrix::order, in device memory: order_columns.h

  // `format`: of the type. Kernels know it when they are compiled.
  constexpr const std::byte* rows_from(const PanelFormat& format, int64_t row_tile) const {
    return tiles + row_tile * row_tile_bytes(format, cols, block);
  }
  constexpr const std::byte* tile(const PanelFormat& format, int64_t row_tile,
                                  int64_t col_tile) const {
    return rows_from(format, row_tile) + tile_offset(format, col_tile);
  }
};

// Whether a kernel adds a minimum, times the sum of a group's inputs, to the group's sum. It does
// not where it subtracts the zero point from the codes: Note [Exact pieces] of tile_registers.cuh.
constexpr bool adds_minimum(const PanelFormat& format) {
  return has_minimum(format) && format.scales != Scales::kZeroPoint24;
}

// A function per weight type: element i is make.operator()<type i>(). Kernels are compiled per
// type, not per format, because nvcc 13 rejects a struct as a kernel's template argument.
template <typename Function, typename Make>
constexpr auto per_type(const Make& make) {
  constexpr size_t kCount = std::size(kWeightTypes);
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array<Function, kCount> {
      make.template operator()<kWeightTypes[kIndex].type>()...
    };
  }(std::make_index_sequence<kCount>());
}

// Where a number is in a plane: `shift` bits up from bit 0 of the word at byte `byte`.
struct BitOffset {
  int byte;
  int shift;
};

// Of the number at `row` in [0, kTileRows) and `col` in [0, kTileCols), in a plane of `bits` bits.
constexpr BitOffset offset_in_plane(int bits, int row, int col) {
  const int lane = row % 8 * 4 + col % 8 / 2, e = col % 2;
  const int r = row / 8 + col % kStepCols / 8 * 2;
  const int n = col / kStepCols * 4 + r;
  const int word = bits == 32 ? 2 * n + e : n * bits / 16;
  const int shift = bits == 32 ? 0 : n * bits % 16 + 16 * e;
  const int together = bits < 4 ? bits : 4;  // words of a lane
  return {((word / together * kWarpLanes + lane) * together + word % together) * 4, shift};
}

// Byte offset in a tile of a number of `row` for the group that `col` is in; field 0 is the scale.
constexpr int scale_in_tile(const PanelFormat& format, int row, int col, int field = 0) {
  const ScaleFields scales = scale_fields(format);
  const int pair = (col / format.group * scales.fields + field) * 2;
  return tile_code_bytes(format) + row % 8 * lane_scale_bytes(format) +
         (pair + row / 8) * scales.field_bytes;
}

// Byte offset of a row's word in the scales of an open block.
constexpr int open_scale_at(int row) { return (row % 8 * 2 + row / 8) * 4; }

// Byte offset in a head of the float16 of `row`: 0 for scales, 1 for minima.
constexpr int half_in_head(const PanelFormat& format, int row, int half) {
  return row % 8 * lane_head_bytes(format) + (half * 2 + row / 8) * 2;
}

// Writes 16 rows of tiles, `row_tile`, of the matrix that `parts` make on top of each other: of
// maps that read one input (q, k and v; gate and up), of one type, number of columns and open
// block. `to`: host memory, row_tile_bytes, all of which is written. Threads may write different
// row tiles.
void tile_rows(std::span<const PackedMatrix> parts, int64_t row_tile, std::byte* to);

}  // namespace sinkstream::cuda
