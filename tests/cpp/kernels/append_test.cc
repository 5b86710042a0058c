#include "kernels/append.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/matrix.h"
#include "kernels/reference/page_element.h"
#include "kernels/tables.h"
#include "kernels/test_stream.h"

namespace sinkstream {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

class AppendTest : public TableTest {
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
        .rotation = {cos.data(), sin.data(), rotary_dim, pairing}},
       {&pool});
  }
};

// The distance of two numbers, in units of what `type` can tell apart beside them.
double steps_between(float a, float b, DType type) {
  const double step = type == DType::kFloat32   ? 0x1p-23
                      : type == DType::kFloat16 ? 0x1p-10
                                                : 0x1p-7;
  return std::abs(double{a} - b) / (std::max(std::abs(a), std::abs(b)) * step + 0x1p-24);
}

TEST_P(AppendTest, WritesEveryRowAsTheReferenceAndNothingElse) {
  for (const DType type : kTypes) {
    for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
      for (const int64_t head_dim : {2, 6, 16, 18, 64, 80, 256}) {
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
        for (int64_t i = 0; i < 2 * shape.kv_heads * kPageRows * head_dim; ++i) {
          const float found = reference::read_element(page.get(), i, type);
          const float wanted = reference::read_element(expected.get(), i, type);
          const bool is_key = i < shape.kv_heads * kPageRows * head_dim;
          ASSERT_EQ(std::isnan(found), std::isnan(wanted)) << name_of(type) << " element " << i;
          if (std::isnan(wanted)) continue;
          // Values are rounded once. A turned key may lie on the other side of a rounding border;
          // where its two products cancel, of a number near 20.
          if (is_key) {
            ASSERT_TRUE(steps_between(found, wanted, type) <= 1 || std::abs(found - wanted) < 4e-6)
                << name_of(type) << " element " << i << ": " << found << ", not " << wanted;
          } else {
            ASSERT_EQ(found, wanted) << name_of(type) << " element " << i;
          }
        }
        for (int64_t i = shape.bytes(); i < shape.bytes() + kGuard; ++i) {
          ASSERT_EQ(page[i], std::byte{0xff}) << "writes behind the page";
        }
      }
    }
  }
}

TEST_P(AppendTest, GivesTheSameBitsOneByOneAndOnAnyThread) {
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

// A page may be read while its other rows are written: nothing of a row may change once written.
TEST_P(AppendTest, LeavesNeighboursAlone) {
  for (const DType type : kTypes) {
    const PageShape shape = {2, 20, type};
    const Bytes page = nan_bytes(shape.bytes()), other = nan_bytes(shape.bytes());
    append(table().append, shape, Pairing::kHalf, {{page.get(), 6}}, 1, 3);
    append(table().append, shape, Pairing::kHalf, {{other.get(), 6}}, 1, 3);
    append(table().append, shape, Pairing::kHalf, {{page.get(), 7}, {page.get(), 5}}, 1, 50);
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t d = 0; d < 20; ++d) {
        for (const int64_t i :
             {shape.key_offset(h) / bytes_of(type) + shape.key_element(6, d),
              shape.value_offset(h) / bytes_of(type) + shape.value_element(6, d)}) {
          EXPECT_EQ(reference::read_element(page.get(), i, type),
                    reference::read_element(other.get(), i, type));
        }
      }
    }
  }
}

TEST_P(AppendTest, RoundsToNearestEvenAndKeepsInfinityAndNan) {
  ThreadPool pool(1);
  const float numbers[] = {1.00390625f,  1.01171875f, 1 + 0x1p-11f, 1 + 3 * 0x1p-11f,
                           -1.00390625f, 65519,       65520,        INFINITY,
                           -INFINITY,    NAN,         3.4e38f,      0.0f,
                           -0.0f,        0x1p-14f,    1e-5f,        70000};
  for (const DType type : kTypes) {
    const PageShape shape = {1, 16, type};
    const Bytes page = nan_bytes(shape.bytes());
    const Slot slot = {page.get(), 9};
    table().append({.keys = numbers,
                    .values = numbers,
                    .key_stride = 16,
                    .value_stride = 16,
                    .slots = &slot,
                    .rows = 1,
                    .shape = shape,
                    .rotation = {}},
                   {&pool});
    for (int64_t d = 0; d < 16; ++d) {
      const float wanted = type == DType::kFloat32   ? numbers[d]
                           : type == DType::kFloat16 ? to_float(to_f16(numbers[d]))
                                                     : to_float(to_bf16(numbers[d]));
      for (const float found : {reference::read_element(page.get(), shape.key_element(9, d), type),
                                reference::read_element(page.get() + shape.value_offset(0),
                                                        shape.value_element(9, d), type)}) {
        EXPECT_TRUE(float_bits(found) == float_bits(wanted) ||
                    (std::isnan(found) && std::isnan(wanted)))
            << name_of(type) << ": " << numbers[d] << " becomes " << found;
      }
    }
  }
}

SINKSTREAM_TEST_ALL_TABLES(AppendTest);

}  // namespace
}  // namespace sinkstream
