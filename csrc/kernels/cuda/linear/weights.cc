#include "kernels/cuda/linear/weights.h"

#include <array>
#include <cstring>

#include "common/check.h"

namespace sinkstream::cuda {

namespace {

// Where a number is in a panel, like TileOffset: Note: [Panels] of packed_matrix.h.
struct PanelOffset {
  int64_t byte;
  int shift;
};

constexpr PanelOffset offset_in_panel(WeightType type, int64_t row, int64_t col) {
  switch (type) {
    case WeightType::kFloat32: return {(col * kPanelRows + row) * 4, 0};
    case WeightType::kFloat16: return {(col * kPanelRows + row) * 2, 0};
    case WeightType::kBFloat16: return {((col / 2 * kPanelRows + row) * 2 + col % 2) * 2, 0};
    default: break;
  }
  const int64_t block = col / kUnit * block_bytes(format_of(type)), c = col % kUnit;
  if (type == WeightType::kInt8) return {block + (c / 4 * kPanelRows + row) * 4 + c % 4, 0};
  const int64_t nibble = c % 8 / 2 + c % 2 * 4;
  return {block + (c / 8 * kPanelRows + row) * 4 + nibble / 2, static_cast<int>(nibble % 2 * 4)};
}

// offset_in_tile of every number of a tile, computed at compile time.
template <WeightType kType>
constexpr std::array<TileOffset, kTileRows * kTileCols> kTileOffsets = [] {
  std::array<TileOffset, kTileRows * kTileCols> offsets;
  for (int i = 0; i < kTileRows * kTileCols; ++i) {
    offsets[i] = offset_in_tile(kType, i / kTileCols, i % kTileCols);
  }
  return offsets;
}();

// Copies `row` of the panel to `tile_row` of the tile that holds `col`.
template <WeightType kType>
void copy_number(const std::byte* panel, int64_t row, int64_t col, int tile_row, std::byte* tile) {
  constexpr size_t kBytes = tile_code_bytes(kType) / (kTileRows * kTileCols);
  const PanelOffset from = offset_in_panel(kType, row, col);
  const TileOffset to = kTileOffsets<kType>[tile_row * kTileCols + col % kTileCols];
  if constexpr (kBytes > 0) {
    std::memcpy(tile + to.byte, panel + from.byte, kBytes);
  } else {  // half a byte
    tile[to.byte] |= ((panel[from.byte] >> from.shift) & std::byte{15}) << to.shift;
  }
}

template <WeightType kType>
void copy_scales(const std::byte* panel, int64_t row, int64_t col, int tile_row, std::byte* tile) {
  constexpr int kScales = scales_per_group(kType);
  const std::byte* from = panel + (col / kUnit + 1) * block_bytes(format_of(kType)) -
                          kScales * kPanelRows * 2 + row * 2;
  std::byte* to = tile + scale_in_tile(kType, tile_row, static_cast<int>(col % kTileCols));
  for (int i = 0; i < kScales; ++i) std::memcpy(to + i * 4, from + i * kPanelRows * 2, 2);
}

template <WeightType kType>
void tile_row(const std::byte* panel, int64_t row, int64_t cols, int tile_row, std::byte* tiles) {
  constexpr int64_t kBytes = tile_bytes(kType);
  for (int64_t col = 0; col < cols; ++col) {
    copy_number<kType>(panel, row, col, tile_row, tiles + col / kTileCols * kBytes);
  }
  if constexpr (is_quantized(kType)) {
    for (int64_t col = 0; col < cols; col += kUnit) {
      copy_scales<kType>(panel, row, col, tile_row, tiles + col / kTileCols * kBytes);
    }
  }
}

template <WeightType kType>
void tile_all_rows(const PackedMatrix& part, int64_t first_row, std::byte* tiles) {
  const int64_t row_bytes = col_tiles(part.cols) * tile_bytes(kType);  // of 16 rows
  for (int64_t row = 0; row < part.rows; ++row) {
    const int64_t to = first_row + row;
    tile_row<kType>(part.panel(row / kPanelRows), row % kPanelRows, part.cols,
                    static_cast<int>(to % kTileRows), tiles + to / kTileRows * row_bytes);
  }
}

}  // namespace

void tile_rows(const PackedMatrix& part, int64_t first_row, std::byte* tiles) {
  SINKSTREAM_CHECK(!is_quantized(part.type) || part.cols % kUnit == 0, "cols is ", part.cols);
  switch (part.type) {
    case WeightType::kFloat32: return tile_all_rows<WeightType::kFloat32>(part, first_row, tiles);
    case WeightType::kFloat16: return tile_all_rows<WeightType::kFloat16>(part, first_row, tiles);
    case WeightType::kBFloat16: return tile_all_rows<WeightType::kBFloat16>(part, first_row, tiles);
    case WeightType::kInt8: return tile_all_rows<WeightType::kInt8>(part, first_row, tiles);
    case WeightType::kInt4: return tile_all_rows<WeightType::kInt4>(part, first_row, tiles);
    case WeightType::kInt4Minimum:
      return tile_all_rows<WeightType::kInt4Minimum>(part, first_row, tiles);
    default: SINKSTREAM_CHECK(false, name_of(part.type), " has no tiles");
  }
}

}  // namespace sinkstream::cuda
