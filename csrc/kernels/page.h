// The inner layout of a page: one layer's keys and values of 64 tokens.
//
// Note: [Page layout]
// A page holds all keys, then all values; each half is [kv_heads] of
//
//             keys                        values
//   float32   [head_dim][64]              [64][head_dim]
//   float16   [head_dim][64]              [64][head_dim]
//   bfloat16  [head_dim/2][64][2]         [32][head_dim][2]
//
// Keys lie across tokens, so that 64 scores grow side by side without sums over lanes. The
// bfloat16 layouts put pairs of the summed dimension together, as vdpbf16ps reads them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"

namespace sinkstream {

constexpr int64_t kPageRows = 64;

struct PageShape {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // even
  DType type = DType::kFloat32;

  constexpr int64_t head_bytes() const { return kPageRows * head_dim * bytes_of(type); }
  constexpr int64_t bytes() const { return 2 * kv_heads * head_bytes(); }
  constexpr int64_t key_offset(int64_t kv_head) const { return kv_head * head_bytes(); }
  constexpr int64_t value_offset(int64_t kv_head) const {
    return (kv_heads + kv_head) * head_bytes();
  }
  // Where element `dim` of token `row` lies, in elements from the head's keys or values.
  constexpr int64_t key_element(int64_t row, int64_t dim) const {
    return type == DType::kBFloat16 ? (dim / 2 * kPageRows + row) * 2 + dim % 2
                                    : dim * kPageRows + row;
  }
  constexpr int64_t value_element(int64_t row, int64_t dim) const {
    return type == DType::kBFloat16 ? (row / 2 * head_dim + dim) * 2 + row % 2
                                    : row * head_dim + dim;
  }
};

}  // namespace sinkstream
