#include "kernels/append.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "kernels/attention_fixture.h"
#include "kernels/matrix.h"

namespace sinkstream {
namespace {

class AppendTest : public TableTest<&Kernels::append> {
 protected:
  // Appends random tokens to `slots`.
  void append(const AppendOp* op, const PageShape& shape, Pairing pairing,
              const std::vector<Slot>& slots, int threads, uint32_t seed = 3) {
    ThreadPool pool(threads);
    const auto rows = static_cast<int64_t>(slots.size());
    const int64_t stride = shape.kv_heads * shape.head_dim + 5;
    const int64_t rotary_dim = shape.head_dim / 4 * 2;
    const auto keys = random_floats(rows * stride + 1, seed);
    const auto values = random_floats(rows * (stride + 2) + 1, seed + 1);
    std::vector<float> cos(rows * rotary_dim / 2 + 1), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(static_cast<float>(i));
      sin[i] = std::sin(static_cast<float>(i));
    }
    op({.keys = keys.data() + 1,
        .values = values.data() + 1,
        .key_stride = stride,
        .value_stride = stride + 2,
        .slots = slots.data(),
        .rows = rows,
        .shape = shape,
        .rotation =
            {.cos = cos.data(), .sin = sin.data(), .rotary_dim = rotary_dim, .pairing = pairing}},
       {&pool});
  }
};

// The spacing of `type` near a number of magnitude `size`, in a row whose largest magnitude is
// `largest`.
double step_of(DType type, double size, double largest) {
  switch (type) {
    case DType::kFloat32: return size * 0x1p-23;
    case DType::kFloat16: return size * 0x1p-10;
    case DType::kBFloat16: return size * 0x1p-7;
    case DType::kInt8: return largest / 127;
  }
  return 0;
}

// Values are rounded once. A rotated key may round the other way; where its two products cancel, by
// the spacing of a number near 20.
void expect_rounded(const Slot& slot, const Slot& expected, const PageShape& shape, int64_t head) {
  EXPECT_EQ(stored_row(slot, shape, Half::kValues, head),
            stored_row(expected, shape, Half::kValues, head))
      << name_of(shape.type) << " row " << slot.row;
  const auto found = stored_row(slot, shape, Half::kKeys, head);
  const auto wanted = stored_row(expected, shape, Half::kKeys, head);
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    const double size = std::max(std::abs(found[d]), std::abs(wanted[d]));
    EXPECT_LE(std::abs(double{found[d]} - wanted[d]),
              step_of(shape.type, size, largest_of(wanted)) * 1.001 + 4e-6)
        << name_of(shape.type) << " row " << slot.row << " dim " << d;
  }
}

// Every byte of a row must still be as `nan_bytes` set it.
void expect_untouched(const Slot& slot, const PageShape& shape, int64_t head) {
  for (const Half half : {Half::kKeys, Half::kValues}) {
    const std::byte* stored = slot.page + reference::offset_of(shape, half, head);
    const auto expect_bytes = [&](int64_t begin, int64_t count) {
      for (int64_t i = begin; i < begin + count; ++i) {
        EXPECT_EQ(stored[i], std::byte{0xff}) << name_of(shape.type) << " row " << slot.row;
      }
    };
    const int64_t bytes = bytes_of(shape.type);
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      expect_bytes(reference::element_of(shape, half, slot.row, d) * bytes, bytes);
    }
    if (shape.has_scales()) expect_bytes(shape.scale_offset(slot.row), sizeof(float));
  }
}

TEST_P(AppendTest, WritesEveryRowAsTheReferenceAndNothingElse) {
  for (const DType type : kTypes) {
    for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
      for (const int64_t head_dim : {2, 6, 16, 18, 64, 80, 256, 320, 512}) {
        const PageShape shape = {3, head_dim, type};
        constexpr int64_t kGuard = 256;
        const Bytes page = nan_bytes(shape.bytes() + kGuard);
        const Bytes expected = nan_bytes(shape.bytes() + kGuard);
        std::vector<Slot> slots, expected_slots;
        for (const int64_t row : {0, 63, 4, 5, 7, 30, 29, 12, 13, 14, 15, 16, 17, 40, 41, 42, 1}) {
          slots.push_back({page.get(), row});
          expected_slots.push_back({expected.get(), row});
        }
        append(table().append, shape, pairing, slots, 2);
        append(reference_kernels().append, shape, pairing, expected_slots, 1);
        std::vector<bool> is_written(kPageRows);
        for (const Slot& slot : slots) is_written[slot.row] = true;
        for (int64_t row = 0; row < kPageRows; ++row) {
          for (int64_t h = 0; h < shape.kv_heads; ++h) {
            if (is_written[row]) {
              expect_rounded({page.get(), row}, {expected.get(), row}, shape, h);
            } else {
              expect_untouched({page.get(), row}, shape, h);
            }
          }
        }
        for (int64_t i = shape.bytes(); i < shape.bytes() + kGuard; ++i) {
          ASSERT_EQ(page[i], std::byte{0xff}) << "writes past the page";
        }
      }
    }
  }
}

TEST_P(AppendTest, GivesTheSameBitsOneByOneAndOnAnyThread) {  // tsan
  for (const DType type : kTypes) {
    const PageShape shape = {2, 18, type};
    std::vector<Bytes> pages;
    for (const int threads : {1, 2, 3}) {
      pages.push_back(nan_bytes(2 * shape.bytes()));
      std::vector<Slot> slots;
      for (int64_t row = 0; row < 100; ++row) {
        slots.push_back({pages.back().get() + row / 64 * shape.bytes(), row % 64});
      }
      append(table().append, shape, Pairing::kHalf, slots, threads);
      EXPECT_EQ(std::memcmp(pages[0].get(), pages.back().get(), 2 * shape.bytes()), 0)
          << name_of(type) << " on " << threads << " threads";
    }
  }
}

// A page may be read while its other rows are written: a row must not change once written.
TEST_P(AppendTest, LeavesNeighboursAlone) {
  for (const DType type : kTypes) {
    const PageShape shape = {2, 20, type};
    const Bytes page = nan_bytes(shape.bytes()), other = nan_bytes(shape.bytes());
    append(table().append, shape, Pairing::kHalf, {{page.get(), 6}}, 1, 3);
    append(table().append, shape, Pairing::kHalf, {{other.get(), 6}}, 1, 3);
    append(table().append, shape, Pairing::kHalf, {{page.get(), 7}, {page.get(), 5}}, 1, 50);
    for (int64_t h = 0; h < 2; ++h) {
      for (const Half half : {Half::kKeys, Half::kValues}) {
        EXPECT_EQ(stored_row({page.get(), 6}, shape, half, h),
                  stored_row({other.get(), 6}, shape, half, h))
            << name_of(type);
      }
    }
  }
}

// Appends the same numbers, [kv_heads, head_dim], as key and as value, not rotated.
void append_unturned(AppendOp* op, const PageShape& shape, const Slot& slot, const float* numbers) {
  ThreadPool pool(1);
  op({.keys = numbers,
      .values = numbers,
      .key_stride = shape.kv_heads * shape.head_dim,
      .value_stride = shape.kv_heads * shape.head_dim,
      .slots = &slot,
      .rows = 1,
      .shape = shape,
      .rotation = {}},
     {&pool});
}

TEST_P(AppendTest, RoundsToNearestEvenAndKeepsInfinityAndNan) {
  const float numbers[] = {1.00390625f,  1.01171875f, 1 + 0x1p-11f, 1 + 3 * 0x1p-11f,
                           -1.00390625f, 65519,       65520,        INFINITY,
                           -INFINITY,    NAN,         3.4e38f,      0.0f,
                           -0.0f,        0x1p-14f,    1e-5f,        70000};
  for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const PageShape shape = {1, 16, type};
    const Bytes page = nan_bytes(shape.bytes());
    append_unturned(table().append, shape, {page.get(), 9}, numbers);
    for (int64_t d = 0; d < 16; ++d) {
      const float wanted = type == DType::kFloat32   ? numbers[d]
                           : type == DType::kFloat16 ? to_float(to_f16(numbers[d]))
                                                     : to_float(to_bf16(numbers[d]));
      for (const Half half : {Half::kKeys, Half::kValues}) {
        const float found = reference::read_element(page.get(), shape, half, 0, 9, d);
        EXPECT_TRUE(float_bits(found) == float_bits(wanted) ||
                    (std::isnan(found) && std::isnan(wanted)))
            << name_of(type) << ": " << numbers[d] << " becomes " << found;
      }
    }
  }
}

// A head's numbers, and their int8 scale and codes.
struct Quantized {
  std::array<float, 6> numbers;
  float scale;
  std::array<int8_t, 6> codes;
};

TEST_P(AppendTest, GivesEachTokenAndHeadAScaleAndCodesOfItsOwn) {
  constexpr float kTiny = std::numeric_limits<float>::min();
  const std::vector<Quantized> heads = {
      {{127, 0.5f, 1.5f, 2.5f, -0.5f, -126.5f}, 1, {127, 0, 2, 2, 0, -126}},
      {{-254, 3, 5, 1, -1, 253}, 2, {-127, 2, 2, 0, 0, 126}},
      {{1.27e-30f, -1.27e-30f, 0, 0, 0, 1e-33f}, 1.27e-30f / 127, {127, -127, 0, 0, 0, 0}},
      {{3.4e38f, -3.4e38f, 1, -0.0f, 0, 1.7e38f}, 3.4e38f / 127, {127, -127, 0, 0, 0, 64}},
      {{0, -0.0f, 0, 0, 0, 0}, 0, {}},
      {{126 * kTiny, kTiny, 0, 0, 0, 0}, 0, {}},  // a scale that would be denormal
      {{1, 2, INFINITY, 3, 4, 5}, NAN, {}},
      {{1, 2, 3, 4, 5, -INFINITY}, NAN, {}},
      {{NAN, 2, 3, 4, 5, 6}, NAN, {}},
      {{1, 2, 3, -NAN, 5, INFINITY}, NAN, {}},
      {{0, 0, 0, 0, 0, 12.7f}, 12.7f / 127, {0, 0, 0, 0, 0, 127}},
  };
  const PageShape shape = {static_cast<int64_t>(heads.size()), 6, DType::kInt8};
  std::vector<float> numbers;
  for (const Quantized& head : heads) {
    numbers.insert(numbers.end(), head.numbers.begin(), head.numbers.end());
  }
  const Bytes page = nan_bytes(shape.bytes());
  constexpr int64_t kRow = 41;
  append_unturned(table().append, shape, {page.get(), kRow}, numbers.data());
  for (int64_t h = 0; h < shape.kv_heads; ++h) {
    for (const Half half : {Half::kKeys, Half::kValues}) {
      const std::byte* stored = page.get() + reference::offset_of(shape, half, h);
      float scale;
      std::memcpy(&scale, stored + shape.scale_offset(kRow), sizeof(scale));
      EXPECT_TRUE(scale == heads[h].scale || (std::isnan(scale) && std::isnan(heads[h].scale)))
          << "head " << h << " has the scale " << scale;
      for (int64_t d = 0; d < 6; ++d) {
        const auto code = static_cast<int8_t>(stored[reference::element_of(shape, half, kRow, d)]);
        EXPECT_EQ(code, heads[h].codes[d]) << "head " << h << " number " << heads[h].numbers[d];
      }
    }
  }
}

SINKSTREAM_TEST_ALL_TABLES(AppendTest);

}  // namespace
}  // namespace sinkstream
