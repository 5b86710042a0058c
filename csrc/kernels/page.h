// The inner layout of a page: one layer's keys and values of 64 tokens.
//
// Note: [Page layout]
// A page holds, for each key head, its keys and then its values, so that whoever attends with one
// head reads one piece of memory:
//
//             keys                        values
//   float32   [head_dim][64]              [64][head_dim]
//   float16   [head_dim][64]              [64][head_dim]
//   bfloat16  [head_dim/2][64][2]         [32][head_dim][2]
//   int8      [head_dim][64], scales      [64][head_dim], scales
//
// Keys lie across tokens, so that 64 scores grow side by side without sums over lanes. The
// bfloat16 layouts put pairs of the summed dimension together, as vdpbf16ps reads them.
//
// On a GPU both lie row by row, [64][head_dim] in every type, as its matrix units load them
// (PageLayout::kRows).
//
// Note: [Int8]
// A number of an int8 page is its code, in [−127, 127], times the scale of its row: 64 scales,
// float32, follow the codes of each head's keys and of each head's values. So every token and head
// has a scale of its own, and no token is rounded anew because of another one. A row is written as
//
//   scale = (largest magnitude of its head_dim numbers) / 127,  code = number / scale,
//
// both divided in float, the code rounded to nearest even. A scale below the normal numbers is 0,
// and so are its codes. If a number of the row is infinite or NaN, which no code can say, the scale
// is NaN and the codes are 0: whoever reads the row finds NaN, and nothing passes for a number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"

namespace sinkstream {

constexpr int64_t kPageRows = 64;

enum class PageLayout : uint8_t { kPanels, kRows };  // of a processor's kernels, and of a GPU's

struct PageShape {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // even
  DType type = DType::kFloat32;
  PageLayout layout = PageLayout::kPanels;

  constexpr bool has_scales() const { return type == DType::kInt8; }
  constexpr int64_t head_bytes() const { return scale_offset(has_scales() ? kPageRows : 0); }
  constexpr int64_t bytes() const { return 2 * kv_heads * head_bytes(); }
  constexpr int64_t key_offset(int64_t kv_head) const { return 2 * kv_head * head_bytes(); }
  constexpr int64_t value_offset(int64_t kv_head) const { return (2 * kv_head + 1) * head_bytes(); }
  // Where the scale of token `row` lies, in bytes from the head's keys or values, if it has one.
  constexpr int64_t scale_offset(int64_t row) const {
    return kPageRows * head_dim * bytes_of(type) + row * int64_t{sizeof(float)};
  }
  // Where element `dim` of token `row` lies, in elements from the head's keys or values.
  constexpr int64_t key_element(int64_t row, int64_t dim) const {
    if (layout == PageLayout::kRows) return row * head_dim + dim;
    return type == DType::kBFloat16 ? (dim / 2 * kPageRows + row) * 2 + dim % 2
                                    : dim * kPageRows + row;
  }
  constexpr int64_t value_element(int64_t row, int64_t dim) const {
    if (layout == PageLayout::kRows) return row * head_dim + dim;
    return type == DType::kBFloat16 ? (row / 2 * head_dim + dim) * 2 + row % 2
                                    : row * head_dim + dim;
  }
};

}  // namespace sinkstream
