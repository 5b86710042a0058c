#include "kernels/cuda/linear/weights.h"

#include <cstring>

#include "common/check.h"
#include "kernels/reference/weight_at.h"

namespace sinkstream::cuda {

namespace {

// Where each number of a tile is in a plane, computed at compile time.
template <int kBits>
constexpr std::array<BitOffset, kTileRows * kTileCols> kOffsets = [] {
  std::array<BitOffset, kTileRows * kTileCols> offsets{};
  for (int i = 0; i < kTileRows * kTileCols; ++i) {
    offsets[i] = offset_in_plane(kBits, i / kTileCols, i % kTileCols);
  }
  return offsets;
}();

// Adds a number to a plane that is zero there.
template <int kBits>
void put(uint32_t number, int tile_row, int64_t col, std::byte* plane) {
  const BitOffset to = kOffsets<kBits>[tile_row * kTileCols + col % kTileCols];
  uint32_t word;
  std::memcpy(&word, plane + to.byte, 4);
  word |= number << to.shift;
  std::memcpy(plane + to.byte, &word, 4);
}

// The bits of row `r` of a panel in column `col`.
template <PanelFormat kFormat>
uint32_t bits_at(const std::byte* panel, int64_t r, int64_t col) {
  switch (kFormat.number) {
    case Number::kFloat32: return read_at<uint32_t>(panel, col * kPanelRows + r);
    case Number::kFloat16: return read_at<uint16_t>(panel, col * kPanelRows + r);
    case Number::kBFloat16:
      return read_at<uint16_t>(panel, (col / 2 * kPanelRows + r) * 2 + col % 2);
    case Number::kCode: break;
  }
  const std::byte* unit = panel + col / kFormat.block * block_bytes(kFormat) +
                          col % kFormat.block / kUnit * unit_bytes(kFormat);
  const int64_t c = col % kUnit;
  if constexpr (kFormat.bits == 8)
    return read_at<uint8_t>(unit, (c / 4 * kPanelRows + r) * 4 + c % 4);
  if constexpr (is_coded(kFormat)) return static_cast<uint32_t>(code_at(kFormat, unit, r, c));
  return 0;
}

// `row_tile`: 16 rows of tiles.
template <PanelFormat kFormat>
void copy_number(const std::byte* panel, int64_t r, int64_t col, int tile_row,
                 std::byte* row_tile) {
  constexpr int kLow = low_bits(kFormat), kHigh = high_bits(kFormat);
  std::byte* tile = row_tile + tile_offset(kFormat, col / kTileCols);
  const uint32_t number = bits_at<kFormat>(panel, r, col);
  put<kLow>(number & static_cast<uint32_t>((uint64_t{1} << kLow) - 1), tile_row, col, tile);
  if constexpr (kHigh > 0) put<kHigh>(number >> kLow, tile_row, col, tile + plane_bytes(kLow));
}

// The scales of the group that begins at `col`, and, with the first group of a block, its head.
template <PanelFormat kFormat>
void copy_scales(const std::byte* panel, int64_t r, int64_t col, int tile_row,
                 std::byte* row_tile) {
  constexpr ScaleFields kScales = scale_fields(kFormat);
  const std::byte* from =
      panel + col / kFormat.block * block_bytes(kFormat) + block_code_bytes(kFormat);
  const int64_t group = col % kFormat.block / kFormat.group, col_tile = col / kTileCols;
  std::byte* tile = row_tile + tile_offset(kFormat, col_tile);
  if (group == 0) {
    std::byte* head = tile - head_before(kFormat, col_tile);
    for (int half = 0; half < kScales.halves; ++half) {
      std::memcpy(head + half_in_head(kFormat, tile_row, half), from + (half * kPanelRows + r) * 2,
                  2);
    }
  }
  from += kScales.halves * kPanelRows * 2;
  for (int field = 0; field < kScales.fields; ++field) {
    const int64_t vector = group * kScales.fields + field;
    std::memcpy(tile + scale_in_tile(kFormat, tile_row, static_cast<int>(col % kTileCols), field),
                from + (vector * kPanelRows + r) * kScales.field_bytes, kScales.field_bytes);
  }
}

template <PanelFormat kFormat>
void tile_rows_of(const PackedMatrix& part, int64_t first_row, std::byte* tiles) {
  for (int64_t row = 0; row < part.rows; ++row) {
    const int64_t to = first_row + row, r = row % kPanelRows;
    const auto tile_row = static_cast<int>(to % kTileRows);
    const std::byte* panel = part.panel(row / kPanelRows);
    std::byte* row_tile = tiles + to / kTileRows * row_tile_bytes(kFormat, part.cols);
    for (int64_t col = 0; col < part.cols; ++col) {
      copy_number<kFormat>(panel, r, col, tile_row, row_tile);
    }
    for (int64_t col = 0; is_coded(kFormat) && col < part.cols; col += kFormat.group) {
      copy_scales<kFormat>(panel, r, col, tile_row, row_tile);
    }
  }
}

using TileRows = void(const PackedMatrix& part, int64_t first_row, std::byte* tiles);
constexpr auto kTileRowsOf =
    per_type<TileRows*>([]<WeightType kType>() { return tile_rows_of<format_of(kType)>; });

}  // namespace

void tile_rows(const PackedMatrix& part, int64_t first_row, std::byte* tiles) {
  const PanelFormat format = format_of(part.type);
  SINKSTREAM_CHECK(has_tiles(format), name_of(part.type), " has no tiles");
  SINKSTREAM_CHECK(!is_coded(format) || part.cols % format.block == 0, "cols is ", part.cols);
  kTileRowsOf[static_cast<size_t>(part.type)](part, first_row, tiles);
}

}  // namespace sinkstream::cuda
