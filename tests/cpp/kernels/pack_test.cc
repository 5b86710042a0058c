#include "kernels/pack.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/errors.h"
#include "kernels/matrix.h"
#include "kernels/reference/weight_at.h"

namespace sinkstream {
namespace {

constexpr int64_t kRowCounts[] = {1, 15, 16, 17, 33};

TEST(Pack, KeepsEveryNumberExactly) {
  for (const Storage storage : kStorages) {
    for (const int64_t rows : kRowCounts) {
      for (const int64_t cols : some_cols(storage)) {
        const Matrix matrix = random_matrix(storage, rows, cols, 1);
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t col = 0; col < cols; ++col) {
            ASSERT_EQ(weight_at(matrix.packed(), row, col), matrix.plain[row][col])
                << name_of(matrix.packed().type) << " " << rows << " x " << cols << " at " << row
                << ", " << col;
          }
        }
      }
    }
  }
}

TEST(Pack, TakesRowsInAnyChunksAtAnyAlignment) {
  for (const Storage storage : kStorages) {
    constexpr int64_t kRows = 53;
    const int64_t cols = whole_blocks(storage, 64);
    const Matrix whole = random_matrix(storage, kRows, cols, 2);
    const int64_t row_bytes = row_bytes_of(storage, cols);
    const int64_t bytes = packed_bytes(weight_type_of(storage), kRows, cols);
    for (const int64_t chunk : {1, 7, 16, 32, 48}) {
      const Panels panels = make_panels(bytes);
      for (int64_t row = 0; row < kRows; row += chunk) {
        const int64_t count = std::min(chunk, kRows - row);
        std::vector<std::byte> shifted(count * row_bytes + 1);
        std::memcpy(shifted.data() + 1, whole.source.data() + row * row_bytes, count * row_bytes);
        pack_rows(storage, shifted.data() + 1, row, count, cols, panels.get());
      }
      EXPECT_EQ(std::memcmp(panels.get(), whole.panels.get(), bytes), 0)
          << name_of(whole.packed().type) << " in chunks of " << chunk;
    }
  }
}

TEST(Pack, LeavesRowsPastTheEndZero) {
  for (const Storage storage : kStorages) {
    const int64_t cols = whole_blocks(storage, 32);
    const Matrix matrix = random_matrix(storage, 17, cols, 3);
    PackedMatrix with_padding = matrix.packed();
    with_padding.rows = 32;
    for (int64_t row = 17; row < 32; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        ASSERT_EQ(weight_at(with_padding, row, col), 0) << name_of(with_padding.type);
      }
    }
  }
}

TEST(Pack, KeepsAllBitPatternsOfScales) {
  std::vector<std::byte> block(row_bytes_of(Storage::kQ4_1, 32));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto scale = static_cast<uint16_t>(bits);
    const auto minimum = static_cast<uint16_t>(~bits);
    std::memcpy(block.data(), &scale, 2);
    std::memcpy(block.data() + 2, &minimum, 2);
    const int64_t bytes = packed_bytes(WeightType::kInt4Minimum, 1, 32);
    const Panels panels = make_panels(bytes);
    pack_rows(Storage::kQ4_1, block.data(), 0, 1, 32, panels.get());
    ASSERT_EQ(number_at<uint16_t>(panels.get() + bytes - 64), scale);
    ASSERT_EQ(number_at<uint16_t>(panels.get() + bytes - 32), minimum);
  }
}

TEST(Pack, SaysWhetherAllScalesAreFinite) {
  for (const Storage storage : kStorages) {
    if (!is_quantized(weight_type_of(storage))) continue;
    const int64_t cols = 2 * row_of(storage).block, bytes = row_of(storage).bytes;
    const Panels panels = make_panels(packed_bytes(weight_type_of(storage), 1, cols));
    for (const auto& [scale, minimum] :
         {std::pair{1.0f, 1.0f}, {INFINITY, 1.0f}, {-INFINITY, 1.0f}, {NAN, 1.0f}, {1.0f, NAN}}) {
      std::vector<std::byte> row(2 * bytes), first(bytes);
      put_scales(storage, scale, minimum, &first);
      if (storage == Storage::kMXFP4) first[0] = std::byte{uint8_t(std::isfinite(scale) ? 9 : 255)};
      std::copy(first.begin(), first.end(), row.begin());
      const PanelFormat format = format_of(weight_type_of(storage));
      const bool has_minimum_too = has_minimum(format) && !has_zero_point(format);
      EXPECT_EQ(pack_rows(storage, row.data(), 0, 1, cols, panels.get()),
                std::isfinite(scale) && (std::isfinite(minimum) || !has_minimum_too))
          << row_of(storage).name << " " << scale << " " << minimum;
    }
  }
}

TEST(Pack, RefusesColumnsThatSplitABlock) {
  std::byte source[64]{}, panels[1024]{};
  EXPECT_THROW(pack_rows(Storage::kQ8_0, source, 0, 1, 33, panels), InternalError);
  EXPECT_THROW(pack_rows(Storage::kQ4_K, source, 0, 1, 128, panels), InternalError);
}

TEST(UnpackVector, ReadsFloatTypesAtAnyAlignment) {
  for (const Storage storage : {Storage::kF32, Storage::kF16, Storage::kBF16}) {
    std::mt19937 random(4);
    const std::vector<std::byte> source = random_source(storage, 37, &random);
    const std::vector<double> expected = dequantize_row(storage, source.data(), 37);
    std::vector<std::byte> shifted(source.size() + 1);
    std::copy(source.begin(), source.end(), shifted.begin() + 1);
    float out[37];
    unpack_vector(storage, shifted.data() + 1, 37, out);
    for (int i = 0; i < 37; ++i) EXPECT_EQ(out[i], expected[i]);
  }
}

TEST(UnpackVector, RefusesBlocks) {
  std::byte source[64]{};
  float out[32];
  EXPECT_THROW(unpack_vector(Storage::kQ4_0, source, 32, out), InternalError);
}

}  // namespace
}  // namespace sinkstream
