#include "kernels/rope.h"

#include <gtest/gtest.h>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "kernels/tolerance.h"

namespace sinkstream {
namespace {

class RopeTest : public TableTest<&Kernels::rope> {};

struct Shape {
  int64_t rows, heads, head_dim, rotary_dim;
};

constexpr Shape kShapes[] = {{0, 2, 16, 16},   {1, 1, 2, 2},    {1, 9, 64, 64},  {5, 3, 80, 80},
                             {3, 2, 96, 24},   {2, 1, 18, 18},  {2, 2, 32, 0},   {70, 4, 128, 128},
                             {1, 1, 256, 256}, {2, 3, 320, 80}, {2, 1, 512, 512}};

TEST_P(RopeTest, TurnsEveryPairByItsAngle) {
  for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
    for (const auto& [rows, heads, head_dim, rotary_dim] : kShapes) {
      for (const int threads : {1, 2}) {
        ThreadPool pool(threads);
        const int64_t stride = heads * head_dim + 5;
        const auto input = random_floats(rows * stride + 1, 3);
        const auto cos = random_floats(rows * rotary_dim / 2 + 1, 4);
        const auto sin = random_floats(rows * rotary_dim / 2 + 1, 5);
        Guarded out(rows * heads * head_dim, 1), expected(out.count());
        RopeArgs args = {.input = input.data() + 1,
                         .input_stride = stride,
                         .out = out.get(),
                         .rows = rows,
                         .heads = heads,
                         .head_dim = head_dim,
                         .rotation = {.cos = cos.data() + 1,
                                      .sin = sin.data() + 1,
                                      .rotary_dim = rotary_dim,
                                      .pairing = pairing}};
        table().rope(args, {&pool});
        EXPECT_TRUE(out.is_intact());
        args.out = expected.get();
        reference_kernels().rope(args, {&pool});
        // Some inputs are 20, and some cosines and sines are 20: this is the scale of rounding
        // errors.
        EXPECT_LE(share_of_tolerance(out.get(), expected.get(), out.count(), 400, DType::kFloat32),
                  1)
            << rows << " x " << heads << " x " << head_dim << ", rotary " << rotary_dim;
        for (int64_t i = 0; i < out.count(); ++i) {
          if (i % head_dim < rotary_dim) continue;
          EXPECT_EQ(out[i], input[1 + i / (heads * head_dim) * stride + i % (heads * head_dim)])
              << "dimensions past rotary_dim pass through";
        }
      }
    }
  }
}

TEST_P(RopeTest, MultipliesTheHeadsOfEachRowByItsFactor) {
  for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
    for (const auto& [rows, heads, head_dim, rotary_dim] : kShapes) {
      ThreadPool pool(2);
      const int64_t stride = heads * head_dim + 5;
      const auto input = random_floats(rows * stride, 3);
      const auto cos = random_floats(rows * rotary_dim / 2, 4);
      const auto sin = random_floats(rows * rotary_dim / 2, 5);
      std::vector<float> factors(rows);
      for (int64_t r = 0; r < rows; ++r) factors[r] = 0.75f + 0.125f * static_cast<float>(r % 9);
      Guarded out(rows * heads * head_dim, 1), expected(out.count());
      RopeArgs args = {.input = input.data(),
                       .input_stride = stride,
                       .out = out.get(),
                       .rows = rows,
                       .heads = heads,
                       .head_dim = head_dim,
                       .rotation = {.cos = cos.data(),
                                    .sin = sin.data(),
                                    .rotary_dim = rotary_dim,
                                    .pairing = pairing},
                       .factors = factors.data()};
      table().rope(args, {&pool});
      EXPECT_TRUE(out.is_intact());
      args.out = expected.get();
      reference_kernels().rope(args, {&pool});
      EXPECT_LE(share_of_tolerance(out.get(), expected.get(), out.count(), 700, DType::kFloat32), 1)
          << rows << " x " << heads << " x " << head_dim << ", rotary " << rotary_dim;
      for (int64_t i = 0; i < out.count(); ++i) {
        if (i % head_dim < rotary_dim) continue;
        const int64_t row = i / (heads * head_dim);
        EXPECT_EQ(out[i], factors[row] * input[row * stride + i % (heads * head_dim)])
            << "dimensions past rotary_dim are multiplied, too";
      }
    }
  }
}

// Both pairings of a head of four, by hand.
TEST_P(RopeTest, TurnsAQuarterAndAHalf) {
  ThreadPool pool(1);
  const float input[] = {1, 2, 3, 4};
  const float cos[] = {0, -1};
  const float sin[] = {1, 0};
  float out[4];
  RopeArgs args = {
      .input = input,
      .input_stride = 4,
      .out = out,
      .rows = 1,
      .heads = 1,
      .head_dim = 4,
      .rotation = {.cos = cos, .sin = sin, .rotary_dim = 4, .pairing = Pairing::kHalf}};
  table().rope(args, {&pool});
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{-3, -2, 1, -4}));
  args.rotation.pairing = Pairing::kInterleaved;
  table().rope(args, {&pool});
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{-2, 1, -3, -4}));
  const float factor = 3;
  args.factors = &factor;
  table().rope(args, {&pool});
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{-6, 3, -9, -12}));
}

SINKSTREAM_TEST_ALL_TABLES(RopeTest);

}  // namespace
}  // namespace sinkstream
