// The inner layout of a page: one layer's keys and values of 64 tokens.
//
// Note: [Page layout]
// A page holds, for each key head, its keys and then its values, so that attention for one head
// reads one piece of memory:
//
//             keys                        values
//   float32   [head_dim][64]              [64][head_dim]
//   float16   [head_dim][64]              [64][head_dim]
//   bfloat16  [head_dim/2][64][2]         [32][head_dim][2]
//   int8      [head_dim][64], scales      [64][head_dim], scales
//
// Keys are transposed, so that 64 scores accumulate in parallel without sums over lanes. The
// bfloat16 layouts store pairs of the summed dimension together, as vdpbf16ps reads them.
//
// On a GPU both are row-major, [64][head_dim] in every type, as tensor cores load them
// (PageLayout::kRows).
//
// Note: [Int8]
// An element of an int8 page is its code, in [−127, 127], times the scale of its row. 64 float32
// scales follow the codes of each head's keys and of each head's values. So every token and head
// has its own scale, and no token is rounded again because of another one. A row is written as
//
//   scale = (largest magnitude of its head_dim elements) / 127,  code = element / scale,
//
// both divided in float, the code rounded to nearest even. A subnormal scale becomes 0, and so do
// its codes. If an element is infinite or NaN, which no code can represent, the scale is NaN and
// the codes are 0: the whole row reads as NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"

namespace sinkstream {

constexpr int64_t kPageRows = 64;

enum class PageLayout : uint8_t { kPanels, kRows };  // of the CPU's kernels, and of the GPU's

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
  // The offset of row `row`'s scale, in bytes from the head's keys or values, if there are scales.
  constexpr int64_t scale_offset(int64_t row) const {
    return kPageRows * head_dim * bytes_of(type) + row * int64_t{sizeof(float)};
  }
  // The offset of element `dim` of row `row`, in elements from the head's keys or values.
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
