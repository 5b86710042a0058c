#include "kernels/cuda/linear/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cuda/tiles.h"
#include "kernels/reference/weight_at.h"
#include "kernels/split_tensors.h"

namespace sinkstream::cuda {
namespace {

// The widths of the planes of `bits` bits: Note: [Tiles].
std::vector<int> planes_of(int bits) {
  switch (bits) {
    case 3: return {2, 1};
    case 5: return {4, 1};
    case 6: return {4, 2};
    default: return {bits};
  }
}

// The bits of number `e` of a lane's word `r` of a step's fragment, exactly as the note says.
uint32_t bits_of_lane(int bits, const std::byte* tile, int lane, int step, int r, int e) {
  const int n = 4 * step + r;
  uint32_t number = 0;
  int below = 0;
  for (const int b : planes_of(bits)) {
    const int word = b == 32 ? 2 * n + e : n * b / 16;
    const int byte = b < 4 ? (lane * b + word) * 4 : (word / 4 * 32 + lane) * 16 + word % 4 * 4;
    const int shift = b == 32 ? 0 : b * (n % (16 / b)) + 16 * e;
    const uint64_t mask = (uint64_t{1} << b) - 1;
    number |= static_cast<uint32_t>((number_at<uint32_t>(tile + byte) >> shift & mask) << below);
    below += b;
    tile += 32 * b * 4;
  }
  return number;
}

template <typename T>
T as(uint32_t bits) {
  T number;
  std::memcpy(&number, &bits, sizeof(T));
  return number;
}

// The number itself; also for rows and columns past the end. `head`: of the tile, or the scales of
// the column's open block, or null.
double number_of_lane(WeightType type, const std::byte* tile, const std::byte* head, int lane,
                      int step, int r, int e) {
  const PanelFormat format = format_of(type);
  switch (format.number) {
    case Number::kFloat32: return as<float>(bits_of_lane(32, tile, lane, step, r, e));
    case Number::kFloat16: return to_float(as<f16>(bits_of_lane(16, tile, lane, step, r, e)));
    case Number::kBFloat16: return to_float(as<bf16>(bits_of_lane(16, tile, lane, step, r, e)));
    case Number::kCode: break;
  }
  const uint32_t code = bits_of_lane(format.bits, tile, lane, step, r, e);
  const int value = format.bits == 8 ? as<int8_t>(code) : value_of(format, static_cast<int>(code));
  const std::byte* scales = tile + format.bits * 128;
  const int lanes = lane / 4, group = step * 16 / format.group, groups = 64 / format.group;
  const auto half = [&](int field, int fields) {
    const int at = ((lanes * groups + group) * fields + field) * 2 + r % 2;
    return double{to_float(number_at<f16>(scales + at * 2))};
  };
  const auto level = [&](int field, int fields) {
    return number_at<uint8_t>(scales + ((lanes * groups + group) * fields + field) * 2 + r % 2);
  };
  const auto top = [&](int half, int halves) {
    return double{to_float(number_at<f16>(head + ((lanes * halves + half) * 2 + r % 2) * 2))};
  };
  const auto word = [&] { return number_at<uint32_t>(head + (lanes * 2 + r % 2) * 4); };
  const auto zero = [&] { return static_cast<int>(word() % 8192); };
  switch (format.scales) {
    case Scales::kNone: return 0;
    case Scales::kHalf: return half(0, 1) * value;
    case Scales::kHalfMinimum: return half(0, 2) * value + half(1, 2);
    case Scales::kTwoLevel: return top(0, 1) * as<int8_t>(level(0, 1)) * value;
    case Scales::kTwoLevelMinimum:
      return top(0, 2) * as<int8_t>(level(0, 2)) * value - top(1, 2) * as<int8_t>(level(1, 2));
    case Scales::kNibbles:
      return top(0, 2) * (level(0, 1) % 16) * value - top(1, 2) * (level(0, 1) / 16);
    case Scales::kPower: return std::ldexp(value, level(0, 1) - 128);
    case Scales::kFloat: return double{as<float>(word())} * number_of_e4m3(uint8_t(code));
    case Scales::kZeroPoint24: return as<float>(word() - word() % 8192) * (value - zero());
    case Scales::kZeroPoint32: return as<float>(word() - word() % 8192) * (value + 128 - zero());
  }
  return 0;
}

// Bytes of a tile's float16, whose columns begin with the tile's or before: of two levels only.
int head_bytes_of(WeightType type) {
  switch (format_of(type).scales) {
    case Scales::kTwoLevel: return 16 * 2;
    case Scales::kTwoLevelMinimum:
    case Scales::kNibbles: return 16 * 4;
    default: return 0;
  }
}

// Calls expect(row, col, number) for every number of every tile.
template <typename Expect>
void for_each_number(const TiledMatrix& matrix, const Expect& expect) {
  const std::byte* next = matrix.tiles;
  const std::byte* head = nullptr;
  const bool open = is_open(format_of(matrix.type));
  for (int64_t row_tile = 0; row_tile < row_tiles(matrix.rows); ++row_tile) {
    const std::byte* const scales =
        next + col_tiles(matrix.cols) * tile_bytes(format_of(matrix.type));
    for (int64_t col_tile = 0; col_tile < col_tiles(matrix.cols); ++col_tile) {
      if (col_tile % 4 == 0) {
        head = next;
        next += head_bytes_of(matrix.type);
      }
      const std::byte* tile = next;
      next += tile_bytes(format_of(matrix.type));
      for (int i = 0; i < 32 * 4 * 4 * 2; ++i) {
        const int lane = i % 32, step = i / 32 % 4, r = i / 128 % 4, e = i / 512;
        const int64_t row = row_tile * 16 + lane / 4 + 8 * (r % 2);
        const int64_t col = col_tile * 64 + step * 16 + 2 * (lane % 4) + 8 * (r / 2) + e;
        if (open) head = scales + col / matrix.block * 64;
        expect(row, col, number_of_lane(matrix.type, tile, head, lane, step, r, e));
      }
    }
    if (open) next = scales + divide_up(divide_up(matrix.cols, 64) * 64, matrix.block) * 64;
  }
  ASSERT_EQ(next - matrix.tiles, tiled_bytes(matrix.type, matrix.rows, matrix.cols, matrix.block));
}

std::vector<int64_t> cols_of(Storage storage) {
  if (row_of(storage).block == 1) return {1, 2, 15, 17, 63, 64, 65, 576};
  if (row_of(storage).block == 32) return {32, 64, 96, 576};
  return {256, 768};
}

// In bits, and against the file's.
TEST(Weights, TakeNoMoreThanAFewPercentMoreThanTheFile) {
  for (const Storage storage : kStorages) {
    const double file = static_cast<double>(row_bytes_of(storage, 4096)) / 4096 * 8;
    const double tiles = static_cast<double>(tiled_bytes(weight_type_of(storage), 16, 4096)) / 8192;
    EXPECT_GE(tiles, file) << row_of(storage).name;
    EXPECT_LE(tiles, file * 1.04) << row_of(storage).name;
  }
  EXPECT_EQ(tiled_bytes(WeightType::kQ4K, 16, 4096), 4.625 * 8192);
  EXPECT_EQ(tiled_bytes(WeightType::kQ6K, 16, 4096), 6.5625 * 8192);
  EXPECT_EQ(tiled_bytes(WeightType::kInt4Zero, 16, 4096, 128), 4.25 * 8192);
  EXPECT_EQ(tiled_bytes(WeightType::kE4m3, 16, 4096, 4096), 16 * 4096 + 64);
}

TEST(Weights, GiveEveryLaneItsFragmentAndZerosPastTheEnd) {
  for (const Storage storage : kStorages) {
    for (const int64_t rows : {1, 15, 16, 17, 40}) {
      for (const int64_t cols : cols_of(storage)) {
        const Matrix matrix = random_matrix(storage, rows, cols, 1);
        const Tiles tiles = tiles_of(matrix);
        int64_t seen = 0;
        for_each_number(tiles.matrix, [&](int64_t row, int64_t col, double number) {
          const bool is_inside = row < rows && col < cols;
          seen += is_inside;
          ASSERT_EQ(number, is_inside ? matrix.plain[row][col] : 0)
              << name_of(tiles.matrix.type) << " row " << row << " of " << rows << " col " << col
              << " of " << cols;
        });
        ASSERT_EQ(seen, rows * cols);
      }
    }
  }
}

TEST(Weights, KeepCodesScalesAndMinimaBitForBit) {
  for (const Storage storage : {Storage::kQ8_0, Storage::kQ4_0, Storage::kQ4_1}) {
    const Matrix matrix = random_matrix(storage, 17, 96, 2);
    const PanelFormat format = format_of(matrix.packed().type);
    const Tiles tiles = tiles_of(matrix);
    const int64_t block = row_bytes_of(storage, 32);
    for (int64_t i = 0; i < 17 * 96; ++i) {
      const int64_t row = i / 96, col = i % 96;
      const std::byte* from = &matrix.source[row * 3 * block + col / 32 * block];
      const std::byte* tile = tiles.matrix.tile(format, row / 16, col / 64);
      const int r = static_cast<int>(row % 16), c = static_cast<int>(col % 64);
      for (int field = 0; field < (storage == Storage::kQ4_1 ? 2 : 1); ++field) {
        ASSERT_EQ(std::memcmp(tile + scale_in_tile(format, r, c, field), from, 2), 0);
        from += 2;
      }
      const BitOffset at = offset_in_plane(format.bits, r, c);
      const uint32_t code = number_at<uint32_t>(tile + at.byte) >> at.shift;
      if (storage == Storage::kQ8_0) {
        ASSERT_EQ(code & 255, static_cast<uint32_t>(from[col % 32]));
      } else {
        const std::byte both = from[col % 16];
        ASSERT_EQ(code & 15,
                  static_cast<uint32_t>(col % 32 < 16 ? both & std::byte{15} : both >> 4));
      }
    }
  }
}

TEST(Weights, KeepOpenBlocksOfAnyLength) {
  for (const Storage storage : {Storage::kInt4, Storage::kInt8, Storage::kFp8}) {
    for (const int64_t group : {32, 64, 128, 256}) {
      const SplitTensors tensors = random_split_tensors(SplitLayout::kRows, storage, group, 3);
      const Panels panels = tensors.pack(nullptr, 1 << 20);
      const PackedMatrix matrix = tensors.matrix(panels);
      ASSERT_EQ(matrix.block, group);
      for_each_number(tiles_of({matrix}).matrix, [&](int64_t row, int64_t col, double number) {
        ASSERT_EQ(number, row < kTensorRows ? weight_at(matrix, row, col) : 0)
            << row_of(storage).name << " in blocks of " << group;
      });
    }
  }
}

TEST(Weights, PutPartsOnTopOfEachOtherAtAnyRow) {
  for (const Storage storage : kStorages) {
    constexpr int64_t kRows[] = {9, 5, 33};
    const int64_t cols = whole_blocks(storage, 96);
    std::vector<Matrix> parts;
    for (const int64_t rows : kRows) {
      parts.push_back(random_matrix(storage, rows, cols, static_cast<uint32_t>(rows)));
    }
    const Tiles tiles = tiles_of({parts[0].packed(), parts[1].packed(), parts[2].packed()});
    for_each_number(tiles.matrix, [&](int64_t row, int64_t col, double number) {
      size_t part = 0;
      while (part < 3 && row >= kRows[part]) row -= kRows[part++];
      ASSERT_EQ(number, part < 3 && col < cols ? parts[part].plain[row][col] : 0);
    });
  }
}

}  // namespace
}  // namespace sinkstream::cuda
