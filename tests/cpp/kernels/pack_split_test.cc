#include "kernels/pack_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "common/errors.h"
#include "kernels/reference/weight_at.h"
#include "kernels/split_tensors.h"
#include "kernels/tables.h"

namespace sinkstream {
namespace {

struct Kind {
  SplitLayout layout;
  Storage storage;
};
constexpr Kind kKinds[] = {
    {SplitLayout::kAwq, Storage::kInt4},  {SplitLayout::kGptq, Storage::kInt4},
    {SplitLayout::kGptq, Storage::kInt8}, {SplitLayout::kRows, Storage::kInt4},
    {SplitLayout::kRows, Storage::kInt8}, {SplitLayout::kRows, Storage::kFp8}};

TEST(PackSplit, TakesPiecesOfAnySize) {
  for (const auto& [layout, storage] : kKinds) {
    const SplitTensors tensors = random_split_tensors(layout, storage, 64, 1);
    const PackedMatrix whole = tensors.matrix(nullptr);
    const Panels expected = tensors.pack(nullptr, int64_t{1} << 20);
    for (const int64_t bytes : {1, 1500, 4000}) {
      EXPECT_GT(split_pieces(tensors.format, kTensorRows, kTensorCols, false, bytes).size(), 1u);
      const Panels found = tensors.pack(nullptr, bytes);
      EXPECT_EQ(std::memcmp(found.get(), expected.get(),
                            packed_bytes(whole.type, kTensorRows, kTensorCols, whole.block)),
                0);
    }
  }
}

TEST(PackSplit, PutsColumnsInTheirOrder) {
  std::vector<int32_t> order(kTensorCols);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  for (const auto& [layout, storage] : kKinds) {
    const SplitTensors tensors =
        random_split_tensors(layout, storage, kTensorCols, 3);  // a scale for a row
    const Panels plain = tensors.pack(nullptr, 5000), ordered = tensors.pack(order.data(), 5000);
    for (int64_t row = 0; row < kTensorRows; ++row) {
      for (int64_t col = 0; col < kTensorCols; ++col) {
        ASSERT_EQ(weight_at(tensors.matrix(ordered), row, col),
                  weight_at(tensors.matrix(plain), row, order[col]));
      }
    }
  }
}

// A transposed tensor of FP8 has the panels of one whose rows follow each other; the last group may
// have fewer columns, and the last scale fewer rows.
TEST(PackSplit, PacksTransposedFp8) {
  for (const int64_t group : {32, 64, 96, 256}) {
    for (const int64_t scale_rows : {1, 16, 40}) {
      SplitTensors rows = random_split_tensors(SplitLayout::kRows, Storage::kFp8, 32, 7);
      rows.format.group = group;
      rows.format.scale_rows = scale_rows;
      const int64_t groups = divide_up(kTensorCols, group);
      const int64_t scales = divide_up(kTensorRows, scale_rows);
      rows.parts[1].resize(scales * groups * 2);
      SplitTensors columns = rows;
      columns.format.layout = SplitLayout::kColumns;
      for (int64_t i = 0; i < kTensorRows * kTensorCols; ++i) {
        const int64_t row = i / kTensorCols, col = i % kTensorCols;
        columns.parts[0][col * kTensorRows + row] = rows.parts[0][i];
      }
      for (int64_t i = 0; i < scales * groups; ++i) {
        const int64_t at = i % groups * scales + i / groups;
        std::copy_n(&rows.parts[1][2 * i], 2, &columns.parts[1][2 * at]);
      }
      const Panels expected = rows.pack(nullptr, 1 << 20);
      const PackedMatrix whole = rows.matrix(expected);
      for (const int64_t bytes : {1, 1500, 4000, 1 << 20}) {
        const Panels found = columns.pack(nullptr, bytes);
        EXPECT_EQ(std::memcmp(found.get(), expected.get(),
                              packed_bytes(whole.type, kTensorRows, kTensorCols, whole.block)),
                  0)
            << "groups of " << group << ", " << scale_rows << " rows, pieces of " << bytes;
        int64_t read = 0;  // every byte once
        for (const SplitPiece& piece :
             split_pieces(columns.format, kTensorRows, kTensorCols, false, bytes)) {
          read += piece.spans[0].bytes + piece.spans[1].bytes;
        }
        EXPECT_EQ(read, std::ssize(columns.parts[0]) + std::ssize(columns.parts[1]));
      }
    }
  }
  EXPECT_FALSE(can_pack_split({.layout = SplitLayout::kColumns, .storage = Storage::kInt8}, 256));
}

// GGUF's blocks have the columns 0 … 15 in the lower halves of their bytes, and 16 … 31 in the
// upper.
TEST(PackSplit, PacksMxfp4AsItsBlocks) {
  const Matrix blocks = random_matrix(Storage::kMXFP4, kTensorRows, kTensorCols, 6);
  SplitTensors tensors = {.format = {.storage = Storage::kMXFP4, .group = kUnit}, .parts = {}};
  for (size_t at = 0; at < blocks.source.size(); at += 17) {
    const std::byte* const block = &blocks.source[at];
    tensors.parts[1].push_back(block[0]);
    const auto code = [&](int col) {
      return block[1 + col % 16] >> (col / 16 * 4) & std::byte{15};
    };
    for (int col = 0; col < 32; col += 2) {
      tensors.parts[0].push_back(code(col) | code(col + 1) << 4);
    }
  }
  for (const int64_t bytes : {1, 1500, 1 << 20}) {
    const Panels found = tensors.pack(nullptr, bytes);
    EXPECT_EQ(std::memcmp(found.get(), blocks.panels.get(),
                          packed_bytes(WeightType::kMxfp4, kTensorRows, kTensorCols)),
              0);
  }
  EXPECT_FALSE(can_pack_split({.storage = Storage::kMXFP4, .group = 64}, 128));
  tensors.parts[1][3] = std::byte{253};  // 2 to the 126th times 6 is infinite
  Panels panels = make_panels(packed_bytes(WeightType::kMxfp4, kTensorRows, kTensorCols));
  const SplitPiece piece =
      split_pieces(tensors.format, kTensorRows, kTensorCols, false, 1 << 20).front();
  std::vector<std::byte> source = tensors.parts[0];
  source.insert(source.end(), tensors.parts[1].begin(), tensors.parts[1].end());
  EXPECT_FALSE(pack_split(tensors.format, kTensorRows, kTensorCols, nullptr, piece, source.data(),
                          panels.get()));
}

TEST(PackSplit, RefusesGroupsThatAreNotWholeUnits) {
  const SplitFormat rows = {.layout = SplitLayout::kRows, .group = 128};
  const SplitFormat columns = {.layout = SplitLayout::kGptq, .group = 128};
  EXPECT_TRUE(can_pack_split(rows, 256));
  EXPECT_TRUE(can_pack_split(columns, 256));
  EXPECT_TRUE(can_pack_split(rows, 96));  // in blocks of 32
  EXPECT_FALSE(can_pack_split(columns, 96));
  EXPECT_FALSE(can_pack_split(rows, 80));
  EXPECT_FALSE(can_pack_split({.layout = SplitLayout::kRows, .group = 48}, 96));
}

class SplitLinearTest : public TableTest<&Kernels::linear> {};

TEST_P(SplitLinearTest, TheLengthOfABlockChangesNoBit) {
  for (const Storage storage : {Storage::kInt4, Storage::kInt8, Storage::kFp8}) {
    const SplitTensors tensors = random_split_tensors(SplitLayout::kRows, storage, 128, 4);
    const SplitTensors repeated = with_short_groups(tensors);
    const Panels panels[] = {tensors.pack(nullptr, 1 << 20), repeated.pack(nullptr, 1 << 20)};
    for (const InputType type : kInputTypes) {
      for (const int64_t tokens : {1, 2, 7, 33}) {
        const std::vector<float> input = random_floats(tokens * kTensorCols, 5);
        std::vector<float> out[2] = {std::vector<float>(tokens * kTensorRows),
                                     std::vector<float>(tokens * kTensorRows)};
        for (int i = 0; i < 2; ++i) {
          const LinearPart part = {.weights = (i == 0 ? tensors : repeated).matrix(panels[i]),
                                   .out = out[i].data(),
                                   .out_stride = kTensorRows};
          ThreadPool pool(1);
          const Panels scratch = make_panels(linear_scratch_bytes(tokens, kTensorCols, 1));
          table().linear({.input = input.data(),
                          .input_stride = kTensorCols,
                          .tokens = tokens,
                          .cols = kTensorCols,
                          .input_type = type,
                          .parts = &part,
                          .part_count = 1,
                          .scratch = scratch.get()},
                         {&pool});
        }
        EXPECT_EQ(out[0], out[1]) << row_of(storage).name << " " << name_of(type) << " " << tokens;
      }
    }
  }
}

SINKSTREAM_TEST_ALL_TABLES(SplitLinearTest);

}  // namespace
}  // namespace sinkstream
