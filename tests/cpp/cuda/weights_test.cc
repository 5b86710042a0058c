#include "kernels/cuda/linear/weights.h"

#include <gtest/gtest.h>

#include "cuda/tiles.h"

namespace sinkstream::cuda {
namespace {

// Number `e` of a lane's word `r` of a step's fragment, exactly as Note: [Tiles] says; also for
// rows and columns past the end.
double number_of_lane(const TiledMatrix& matrix, const std::byte* tile, int lane, int step, int r,
                      int e) {
  const std::byte* codes = tile;
  const std::byte* scales = tile + tile_code_bytes(matrix.type);
  switch (matrix.type) {
    case WeightType::kFloat32:
      return number_at<float>(tile + ((step * 2 + r / 2) * 32 + lane) * 16 + r % 2 * 8 + e * 4);
    case WeightType::kFloat16:
      return to_float(number_at<f16>(tile + (step * 32 + lane) * 16 + r * 4 + e * 2));
    case WeightType::kBFloat16:
      return to_float(number_at<bf16>(tile + (step * 32 + lane) * 16 + r * 4 + e * 2));
    default: break;
  }
  const int group = lane / 4, column_group = step / 2;
  if (matrix.type == WeightType::kInt8) {
    const int word = step % 2 * 2 + r / 2;
    const auto code =
        number_at<int8_t>(codes + (column_group * 32 + lane) * 16 + word * 4 + r % 2 + 2 * e);
    return code *
           double{to_float(number_at<f16>(scales + group * 8 + column_group * 4 + r % 2 * 2))};
  }
  const auto word = number_at<uint32_t>(codes + lane * 16 + step * 4);
  const int code = static_cast<int>(word >> (4 * r + 16 * e)) & 15;
  if (matrix.type == WeightType::kInt4) {
    return (code - 8) *
           double{to_float(number_at<f16>(scales + group * 8 + column_group * 4 + r % 2 * 2))};
  }
  const std::byte* both = scales + group * 16 + column_group * 8 + r % 2 * 2;
  return code * double{to_float(number_at<f16>(both))} + to_float(number_at<f16>(both + 4));
}

// Calls expect(row, col, number) for every number of every tile.
template <typename Expect>
void for_each_number(const TiledMatrix& matrix, const Expect& expect) {
  for (int64_t row_tile = 0; row_tile < row_tiles(matrix.rows); ++row_tile) {
    for (int64_t col_tile = 0; col_tile < col_tiles(matrix.cols); ++col_tile) {
      const std::byte* tile = matrix.tile(row_tile, col_tile);
      for (int i = 0; i < 32 * 4 * 4 * 2; ++i) {
        const int lane = i % 32, step = i / 32 % 4, r = i / 128 % 4, e = i / 512;
        const int64_t row = row_tile * 16 + lane / 4 + 8 * (r % 2);
        const int64_t col = col_tile * 64 + step * 16 + 2 * (lane % 4) + 8 * (r / 2) + e;
        expect(row, col, number_of_lane(matrix, tile, lane, step, r, e));
      }
    }
  }
}

std::vector<int64_t> cols_of(Storage storage) {
  if (is_quantized(weight_type_of(storage))) return {32, 64, 96, 576};
  return {1, 2, 15, 17, 63, 64, 65, 576};
}

TEST(Weights, GiveEveryLaneItsFragmentAndZerosPastTheEnd) {
  for (const Storage storage : kStorages) {
    for (const int64_t rows : {1, 15, 16, 17, 40}) {
      for (const int64_t cols : cols_of(storage)) {
        const Matrix matrix = random_matrix(storage, rows, cols, 1);
        const Tiles tiles = empty_tiles(matrix.packed().type, rows, cols);
        tile_rows(matrix.packed(), 0, tiles.memory.get());
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
    const WeightType type = matrix.packed().type;
    const Tiles tiles = empty_tiles(type, 17, 96);
    tile_rows(matrix.packed(), 0, tiles.memory.get());
    const int64_t block = row_bytes_of(storage, 32);
    for (int64_t i = 0; i < 17 * 96; ++i) {
      const int64_t row = i / 96, col = i % 96;
      const std::byte* from = &matrix.source[row * 3 * block + col / 32 * block];
      const std::byte* tile = tiles.matrix.tile(row / 16, col / 64);
      const int r = static_cast<int>(row % 16), c = static_cast<int>(col % 64);
      const std::byte* scales = tile + scale_in_tile(type, r, c);
      ASSERT_EQ(std::memcmp(scales, from, 2), 0);
      from += 2;
      if (storage == Storage::kQ4_1) {
        ASSERT_EQ(std::memcmp(scales + 4, from, 2), 0);
        from += 2;
      }
      const TileOffset at = offset_in_tile(type, r, c);
      if (storage == Storage::kQ8_0) {
        ASSERT_EQ(tile[at.byte], from[col % 32]);
      } else {
        const std::byte both = from[col % 16];
        const std::byte code = col % 32 < 16 ? both & std::byte{15} : both >> 4;
        ASSERT_EQ((tile[at.byte] >> at.shift) & std::byte{15}, code);
      }
    }
  }
}

TEST(Weights, PutPartsOnTopOfEachOtherAtAnyRow) {
  for (const Storage storage : kStorages) {
    constexpr int64_t kRows[] = {9, 5, 33}, kCols = 96;
    const Tiles tiles = empty_tiles(weight_type_of(storage), 9 + 5 + 33, kCols);
    std::vector<Matrix> parts;
    int64_t first = 0;
    for (const int64_t rows : kRows) {
      parts.push_back(random_matrix(storage, rows, kCols, static_cast<uint32_t>(first)));
      tile_rows(parts.back().packed(), first, tiles.memory.get());
      first += rows;
    }
    for_each_number(tiles.matrix, [&](int64_t row, int64_t col, double number) {
      size_t part = 0;
      while (part < 3 && row >= kRows[part]) row -= kRows[part++];
      ASSERT_EQ(number, part < 3 && col < kCols ? parts[part].plain[row][col] : 0);
    });
  }
}

}  // namespace
}  // namespace sinkstream::cuda
