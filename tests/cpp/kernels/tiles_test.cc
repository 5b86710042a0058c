// Compares the emulated tile unit with numbers computed by hand, and with a real one where the
// processor has it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "common/check.h"
#include "common/dtype.h"
#include "kernels/emulated_lanes.h"
#include "kernels/guarded.h"
#include "kernels/table.h"

namespace sinkstream {
namespace {

#define SINKSTREAM_INLINE inline __attribute__((always_inline))

namespace emulated {
#include "kernels/tiles_emulated.inl"
}  // namespace emulated

constexpr int kRows = emulated::kTileRows;
constexpr int kColumns = 16;

// Three registers, all zeros.
struct Product {
  alignas(64) float sums[kRows][kColumns] = {};
  alignas(64) bf16 inputs[kRows][32] = {};         // rows of pairs along K
  alignas(64) bf16 weights[16][kColumns][2] = {};  // pair k of each column

  void set_weight(int k, int column, float weight) {
    weights[k / 2][column][k % 2] = to_bf16(weight);
  }
  void set(int k, float input, float weight) {
    inputs[0][k] = to_bf16(input);
    set_weight(k, 0, weight);
  }
};

emulated::TileShapes shapes_of(int rows) {
  emulated::TileShapes shapes;
  for (int i = 0; i < 3; ++i) {
    shapes.row_bytes[i] = 64;
    shapes.rows[i] = static_cast<uint8_t>(i == 2 ? 16 : rows);
  }
  return shapes;
}

// Multiplies once, with registers of `rows` rows.
void multiply(Product* product, int rows) {
  namespace tiles = emulated::tiles;
  tiles::configure(shapes_of(rows));
  tiles::load<0>(product->sums);
  tiles::load<1>(product->inputs);
  tiles::load<2>(product->weights);
  tiles::multiply<0, 1, 2>();
  tiles::store<0>(product->sums);
  tiles::release();
}

TEST(EmulatedTiles, AddProductsOfSignedBytes) {
  namespace tiles = emulated::tiles;
  alignas(64) int32_t sums[kRows][kColumns] = {};
  alignas(64) int8_t inputs[kRows][64] = {}, weights[16][kColumns][4] = {};
  inputs[0][0] = -128;
  inputs[0][7] = 3;
  inputs[1][63] = 127;
  weights[0][2][0] = -128;  // column 2
  weights[1][2][3] = -5;
  weights[15][2][3] = 100;
  sums[0][2] = 7;
  tiles::configure(shapes_of(kRows));
  tiles::load<0>(sums);
  tiles::load<1>(inputs);
  tiles::load<2>(weights);
  tiles::multiply_bytes<0, 1, 2>();
  tiles::store<0>(sums);
  tiles::release();
  EXPECT_EQ(sums[0][2], 7 + 128 * 128 - 15);
  EXPECT_EQ(sums[1][2], 12700);
  EXPECT_EQ(sums[0][3], 0);
}

TEST(EmulatedTiles, AddEvenAndOddColumnsApartAndTheirSumToWhatWasThere) {
  // A 1 added to 2^24 is lost, so each order of addition gives another number.
  Product product;
  product.set(0, 0x1p24f, 1);  // even: 2^24 + 1 = 2^24, − 2^24 = 0
  product.set(2, 1, 1);
  product.set(4, -0x1p24f, 1);
  product.set(1, 1, 1);  // odd: 1 + 2 = 3
  product.set(3, 1, 2);
  product.sums[0][0] = 100;
  multiply(&product, 1);
  EXPECT_EQ(product.sums[0][0], 103);

  Product late;  // the previous sum does not start a chain
  late.sums[0][0] = 0x1p24f;
  late.set(0, 1, 1);
  late.set(2, 1, 1);
  multiply(&late, 1);
  EXPECT_EQ(late.sums[0][0], 0x1p24f + 2);
}

TEST(EmulatedTiles, RoundEachStepToNearestEven) {
  Product above;
  above.set(0, 1, 1);
  above.set(2, 0x1.02p-12f, 0x1.02p-12f);  // slightly more than half of 1's last bit
  multiply(&above, 1);
  EXPECT_EQ(above.sums[0][0], 1 + 0x1p-23f);
  Product half;
  half.set(0, 1, 1);
  half.set(2, 0x1p-12f, 0x1p-12f);
  multiply(&half, 1);
  EXPECT_EQ(half.sums[0][0], 1);
}

TEST(EmulatedTiles, TakeAndGiveDenormalsAsZeros) {
  Product product;
  product.set(0, 0x1p-130f, 0x1p100f);  // a denormal input
  product.set(1, 0x1p-80f, 0x1p-60f);   // a denormal product
  multiply(&product, 1);
  EXPECT_EQ(product.sums[0][0], 0);
  Product before;
  before.sums[0][0] = 0x1p-130f;
  multiply(&before, 1);
  EXPECT_EQ(before.sums[0][0], 0);
}

TEST(EmulatedTiles, MultiplyRowsByColumnsAndTouchNoOtherRow) {
  constexpr int kUsed = 5;
  Product product;
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < 32; ++k) product.inputs[row][k] = to_bf16(static_cast<float>(row + k));
  }
  for (int column = 0; column < kColumns; ++column) {
    for (int k = 0; k < 32; ++k) product.set_weight(k, column, static_cast<float>(k - column));
  }
  for (auto& row : product.sums) std::fill_n(row, kColumns, 0.5f);
  multiply(&product, kUsed);
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      float expected = 0.5f;
      for (int k = 0; k < 32 && row < kUsed; ++k) {
        expected += static_cast<float>((row + k) * (k - column));
      }
      EXPECT_EQ(product.sums[row][column], expected) << row << ", " << column;
    }
  }
}

TEST(EmulatedTiles, RefuseWhatTheProcessorWouldFaultOn) {
  namespace tiles = emulated::tiles;
  Product product;
  EXPECT_THROW(tiles::load<0>(product.sums), InternalError) << "before any shape";
  tiles::configure(shapes_of(4));
  EXPECT_THROW(tiles::clear<3>(), InternalError) << "a register without a shape";
  EXPECT_NO_THROW((tiles::multiply<0, 1, 2>()));
  EXPECT_THROW((tiles::multiply<2, 1, 0>()), InternalError) << "rows that differ";
  tiles::release();
  EXPECT_THROW(tiles::store<0>(product.sums), InternalError) << "after the release";
  emulated::TileShapes shapes = shapes_of(17);
  EXPECT_THROW(tiles::configure(shapes), InternalError);
  shapes = shapes_of(4);
  shapes.row_bytes[8] = 64;
  EXPECT_THROW(tiles::configure(shapes), InternalError);
}

#if defined(__x86_64__)
namespace real {
#include "kernels/cpu/linear/amx_instructions.inl"
}  // namespace real

void multiply_really(Product* product, int rows) {
  namespace tiles = real::tiles;
  const emulated::TileShapes shapes = shapes_of(rows);
  tiles::configure(reinterpret_cast<const real::TileShapes&>(shapes));
  tiles::load<0>(product->sums);
  tiles::load<1>(product->inputs);
  tiles::load<2>(product->weights);
  tiles::multiply<0, 1, 2>();
  tiles::store<0>(product->sums);
  tiles::release();
}

// A finite number, with exponents that make sums overflow, cancel or vanish now and then.
float any_number(std::mt19937* random) {
  const int exponent =
      static_cast<int>((*random)() % 8 == 0 ? (*random)() % 200 : 100 + (*random)() % 40);
  return std::ldexp(static_cast<float>((*random)() % 512) - 256, exponent - 135);
}

TEST(EmulatedTiles, EqualTheRealOnesBitForBit) {
  if (!amx_kernels().supported()) GTEST_SKIP() << "this machine has no tile unit";
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Product real, emulated;
    for (auto& row : real.sums) {
      for (float& x : row) x = any_number(&random);
    }
    for (auto& row : real.inputs) {
      for (bf16& x : row) x = to_bf16(any_number(&random));
    }
    for (int column = 0; column < kColumns; ++column) {
      for (int k = 0; k < 32; ++k) real.set_weight(k, column, any_number(&random));
    }
    emulated = real;
    const int rows = 1 + round % kRows;
    multiply_really(&real, rows);
    multiply(&emulated, rows);
    ASSERT_TRUE(same_bits(real.sums[0], emulated.sums[0], kRows * kColumns)) << "round " << round;
  }
}
#endif

}  // namespace
}  // namespace sinkstream
