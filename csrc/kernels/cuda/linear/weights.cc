#include "kernels/cuda/linear/weights.h"

#include <algorithm>
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

// The lowest `bits` bits of both halves of a word.
constexpr uint32_t in_halves(int bits) { return ((uint32_t{1} << bits) - 1) * 0x10001u; }

// The numbers of row `r` of a panel of floats in columns `col`, an even one, and the next: a word's
// halves.
template <PanelFormat kFormat>
uint32_t floats_at(const std::byte* panel, int64_t r, int64_t col, int64_t cols) {
  if constexpr (kFormat.number == Number::kBFloat16) {
    return read_at<uint32_t>(panel, col / 2 * kPanelRows + r);
  } else {
    const uint32_t first = read_at<uint16_t>(panel, col * kPanelRows + r);
    if (col + 1 == cols) return first;
    return first | uint32_t{read_at<uint16_t>(panel, (col + 1) * kPanelRows + r)} << 16;
  }
}

// Codes `pair` and the next of a row of a unit: Note [Panels] of packed_matrix.h. `words`: the
// row's.
template <int kBits>
uint32_t codes_at(const uint32_t (&words)[kBits], int pair) {
  constexpr int kPairs = 16 / kBits;  // in a word, without those that are spread
  if constexpr (kBits == 8) {
    const uint32_t four = words[pair / 2] >> pair % 2 * 16;
    return (four & 0xFF) | (four & 0xFF00) << 8;
  } else if constexpr (kBits == 6) {
    const int first = pair / 8 * 3, j = pair % 8;
    if (j < 6) return words[first + j % 3] >> j / 3 * 6 & in_halves(6);
    const uint32_t high = words[first + 2] >> (j == 6 ? 12 : 14) & in_halves(2);
    return (words[first + j - 6] >> 12 & in_halves(4)) | high << 4;
  } else {
    if (pair < kPairs * kBits)
      return words[pair / kPairs] >> pair % kPairs * kBits & in_halves(kBits);
    uint32_t codes = 0;
    for (int i = 0; i < kBits; ++i) codes |= words[i] >> (15 - i) & in_halves(1) << i;
    return codes;
  }
}

// Adds two numbers, a word's halves, to a plane that is zero there. `at`: of the first in a tile.
template <int kBits>
void put_pair(uint32_t pair, int at, std::byte* plane) {
  const BitOffset to = kOffsets<kBits>[at];
  if constexpr (kBits == 16) {
    std::memcpy(plane + to.byte, &pair, 4);
  } else {
    uint32_t word;
    std::memcpy(&word, plane + to.byte, 4);
    word |= pair << to.shift;
    std::memcpy(plane + to.byte, &word, 4);
  }
}

// Adds the numbers of a row in the columns of a tile, from `col` on, to planes that are zero there.
template <PanelFormat kFormat>
void copy_numbers(const std::byte* panel, int64_t r, int64_t col, int64_t cols, int64_t open,
                  int tile_row, std::byte* tile) {
  constexpr int kLow = low_bits(kFormat), kHigh = high_bits(kFormat);
  const auto count = static_cast<int>(std::min<int64_t>(kTileCols, cols - col));
  const int first = tile_row * kTileCols;
  if constexpr (is_coded(kFormat)) {
    for (int begin = 0; begin < count; begin += int{kUnit}) {
      const int64_t block = block_cols(kFormat, open);
      const std::byte* unit = panel + (col + begin) / block * block_bytes(kFormat, open) +
                              (col + begin) % block / kUnit * unit_bytes(kFormat);
      uint32_t words[kFormat.bits];
      for (int i = 0; i < kFormat.bits; ++i) words[i] = read_at<uint32_t>(unit, i * kPanelRows + r);
#pragma GCC unroll 16
      for (int pair = 0; pair < int{kUnit} / 2; ++pair) {
        const uint32_t codes = codes_at(words, pair);
        const int at = first + begin + 2 * pair;
        put_pair<kLow>(codes & in_halves(kLow), at, tile);
        if constexpr (kHigh > 0) {
          put_pair<kHigh>(codes >> kLow & in_halves(kHigh), at, tile + plane_bytes(kLow));
        }
      }
    }
  } else if constexpr (kFormat.number == Number::kFloat32) {
    for (int i = 0; i < count; ++i) {
      const uint32_t number = read_at<uint32_t>(panel, (col + i) * kPanelRows + r);
      std::memcpy(tile + kOffsets<32>[first + i].byte, &number, 4);
    }
  } else {
    for (int i = 0; i < count; i += 2) {
      put_pair<16>(floats_at<kFormat>(panel, r, col + i, cols), first + i, tile);
    }
  }
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

// Of an open block: the row's word. Note: [Tiles]. `scales`: the panel's.
template <PanelFormat kFormat>
uint32_t open_scale(const std::byte* scales, int64_t r) {
  if constexpr (kFormat.scales != Scales::kZeroPoint24) return read_at<uint32_t>(scales, r);
  const uint32_t low = read_at<uint8_t>(scales + 2 * kPanelRows, r);
  return uint32_t{read_at<uint16_t>(scales, r)} << 16 | (low & 0xe0) << 8 | (low & 0x1f);
}

template <PanelFormat kFormat>
void copy_open_scales(const PackedMatrix& part, const std::byte* panel, int64_t r, int tile_row,
                      std::byte* row_tile) {
  for (int64_t col = 0; col < part.cols; col += part.block) {
    const std::byte* const block = panel + col / part.block * block_bytes(kFormat, part.block);
    const uint32_t word = open_scale<kFormat>(block + block_code_bytes(kFormat, part.block), r);
    std::byte* const scales = row_tile + open_scales_offset(kFormat, part.cols, part.block, col);
    std::memcpy(scales + open_scale_at(tile_row), &word, sizeof(word));
  }
}

template <PanelFormat kFormat>
void tile_row(const PackedMatrix& part, int64_t row, int tile_row, std::byte* row_tile) {
  const std::byte* panel = part.panel(row / kPanelRows);
  const int64_t r = row % kPanelRows;
  for (int64_t tile = 0; tile < col_tiles(part.cols); ++tile) {
    copy_numbers<kFormat>(panel, r, tile * kTileCols, part.cols, part.block, tile_row,
                          row_tile + tile_offset(kFormat, tile));
  }
  if constexpr (is_open(kFormat)) {
    copy_open_scales<kFormat>(part, panel, r, tile_row, row_tile);
  } else if constexpr (is_coded(kFormat)) {
    for (int64_t col = 0; col < part.cols; col += kFormat.group) {
      copy_scales<kFormat>(panel, r, col, tile_row, row_tile);
    }
  }
}

using TileRow = void(const PackedMatrix& part, int64_t row, int tile_row, std::byte* row_tile);
constexpr auto kTileRowOf =
    per_type<TileRow*>([]<WeightType kType>() { return tile_row<format_of(kType)>; });

}  // namespace

void tile_rows(std::span<const PackedMatrix> parts, int64_t row_tile, std::byte* to) {
  const WeightType type = parts.front().type;
  const PanelFormat format = format_of(type);
  const int64_t cols = parts.front().cols, open = parts.front().block;
  SINKSTREAM_CHECK(!is_coded(format) || cols % block_cols(format, open) == 0, "cols is ", cols);
  std::memset(to, 0, static_cast<size_t>(row_tile_bytes(format, cols, open)));
  TileRow* const tile_row = kTileRowOf[static_cast<size_t>(type)];
  int64_t row = row_tile * kTileRows;  // among those of this part and the next ones
  int at = 0;                          // the same row in the tile
  for (const PackedMatrix& part : parts) {
    for (; row < part.rows && at < kTileRows; ++row, ++at) tile_row(part, row, at, to);
    row -= part.rows;
  }
}

}  // namespace sinkstream::cuda
