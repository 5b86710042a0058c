#include "kernels/pack_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "common/errors.h"
#include "kernels/matrix.h"
#include "kernels/reference/weight_at.h"
#include "kernels/tables.h"

namespace sinkstream {
namespace {

constexpr int64_t kRows = 40, kCols = 256;

struct Tensors {
  SplitFormat format;
  std::vector<std::byte> parts[kSplitTensors];

  // A whole matrix is packed in pieces of about `bytes` bytes.
  Panels pack(const int32_t* order, int64_t bytes) const {
    const WeightType type = weight_type_of(format.storage);
    Panels panels = make_panels(packed_bytes(type, kRows, kCols, split_block(format, kCols)));
    for (const SplitPiece& piece : split_pieces(format, kRows, kCols, order != nullptr, bytes)) {
      std::vector<std::byte> source;
      for (int i = 0; i < kSplitTensors; ++i) {
        const auto begin = parts[i].begin() + piece.spans[i].offset;
        source.insert(source.end(), begin, begin + piece.spans[i].bytes);
      }
      EXPECT_TRUE(pack_split(format, kRows, kCols, order, piece, source.data(), panels.get()));
    }
    return panels;
  }

  PackedMatrix matrix(const Panels& panels) const {
    return {.type = weight_type_of(format.storage),
            .rows = kRows,
            .cols = kCols,
            .panels = panels.get(),
            .block = split_block(format, kCols)};
  }
};

std::vector<std::byte> random_bytes(int64_t count, std::mt19937* random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((*random)() % 127);  // no NaN of FP8
  return bytes;
}

// Scales of 16 bits, each for `group` columns, of `rows` rows or, in columns, of all.
Tensors random_tensors(SplitLayout layout, Storage storage, int64_t group, uint32_t seed) {
  std::mt19937 random(seed);
  Tensors found = {.format = {.layout = layout,
                              .storage = storage,
                              .scale_type = Storage::kF16,
                              .group = group,
                              .has_zero_points = storage != Storage::kFp8},
                   .parts = {}};
  const int64_t bits = storage == Storage::kInt4 ? 4 : 8, groups = kCols / group;
  found.parts[0] = random_bytes(kRows * kCols * bits / 8, &random);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < kRows * groups; ++i) {
    const f16 scale = to_f16(normal(random));
    const auto* bytes = reinterpret_cast<const std::byte*>(&scale);
    found.parts[1].insert(found.parts[1].end(), bytes, bytes + 2);
  }
  if (found.format.has_zero_points) {
    found.parts[2] = random_bytes(kRows * bits / 8 * groups, &random);
  }
  return found;
}

// The same numbers with groups of a quarter of the length, in rows.
Tensors with_short_groups(const Tensors& tensors) {
  const auto repeat = [&](const std::vector<std::byte>& from, int64_t width) {
    std::vector<std::byte> to;
    for (auto at = from.begin(); at != from.end(); at += width) {
      for (int i = 0; i < 4; ++i) to.insert(to.end(), at, at + width);
    }
    return to;
  };
  Tensors found = tensors;
  found.format.group /= 4;
  found.parts[1] = repeat(tensors.parts[1], 2);
  found.parts[2] = repeat(tensors.parts[2], 4);
  return found;
}

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
    const Tensors tensors = random_tensors(layout, storage, 64, 1);
    const PackedMatrix whole = tensors.matrix(nullptr);
    const Panels expected = tensors.pack(nullptr, int64_t{1} << 20);
    for (const int64_t bytes : {1, 1500, 4000}) {
      EXPECT_GT(split_pieces(tensors.format, kRows, kCols, false, bytes).size(), 1u);
      const Panels found = tensors.pack(nullptr, bytes);
      EXPECT_EQ(std::memcmp(found.get(), expected.get(),
                            packed_bytes(whole.type, kRows, kCols, whole.block)),
                0);
    }
  }
}

TEST(PackSplit, PutsColumnsInTheirOrder) {
  std::vector<int32_t> order(kCols);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  for (const auto& [layout, storage] : kKinds) {
    const Tensors tensors = random_tensors(layout, storage, kCols, 3);  // a scale for a row
    const Panels plain = tensors.pack(nullptr, 5000), ordered = tensors.pack(order.data(), 5000);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t col = 0; col < kCols; ++col) {
        ASSERT_EQ(weight_at(tensors.matrix(ordered), row, col),
                  weight_at(tensors.matrix(plain), row, order[col]));
      }
    }
  }
}

// GGUF's blocks have the columns 0 … 15 in the lower halves of their bytes, and 16 … 31 in the
// upper.
TEST(PackSplit, PacksMxfp4AsItsBlocks) {
  const Matrix blocks = random_matrix(Storage::kMXFP4, kRows, kCols, 6);
  Tensors tensors = {.format = {.storage = Storage::kMXFP4, .group = kUnit}, .parts = {}};
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
                          packed_bytes(WeightType::kMxfp4, kRows, kCols)),
              0);
  }
  EXPECT_FALSE(can_pack_split({.storage = Storage::kMXFP4, .group = 64}, 128));
  tensors.parts[1][3] = std::byte{253};  // 2 to the 126th times 6 is infinite
  Panels panels = make_panels(packed_bytes(WeightType::kMxfp4, kRows, kCols));
  const SplitPiece piece = split_pieces(tensors.format, kRows, kCols, false, 1 << 20).front();
  std::vector<std::byte> source = tensors.parts[0];
  source.insert(source.end(), tensors.parts[1].begin(), tensors.parts[1].end());
  EXPECT_FALSE(
      pack_split(tensors.format, kRows, kCols, nullptr, piece, source.data(), panels.get()));
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
    const Tensors tensors = random_tensors(SplitLayout::kRows, storage, 128, 4);
    const Tensors repeated = with_short_groups(tensors);
    const Panels panels[] = {tensors.pack(nullptr, 1 << 20), repeated.pack(nullptr, 1 << 20)};
    for (const InputType type : kInputTypes) {
      for (const int64_t tokens : {1, 2, 7, 33}) {
        const std::vector<float> input = random_floats(tokens * kCols, 5);
        std::vector<float> out[2] = {std::vector<float>(tokens * kRows),
                                     std::vector<float>(tokens * kRows)};
        for (int i = 0; i < 2; ++i) {
          const LinearPart part = {.weights = (i == 0 ? tensors : repeated).matrix(panels[i]),
                                   .out = out[i].data(),
                                   .out_stride = kRows};
          ThreadPool pool(1);
          const Panels scratch = make_panels(linear_scratch_bytes(tokens, kCols, 1));
          table().linear({.input = input.data(),
                          .input_stride = kCols,
                          .tokens = tokens,
                          .cols = kCols,
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
