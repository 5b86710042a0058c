// Reads and writes the elements of one row of a page, of any type.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/page.h"

namespace sinkstream::reference {

enum class Half { kKeys, kValues };

inline int64_t offset_of(const PageShape& shape, Half half, int64_t head) {
  return half == Half::kKeys ? shape.key_offset(head) : shape.value_offset(head);
}

inline int64_t element_of(const PageShape& shape, Half half, int64_t row, int64_t dim) {
  return half == Half::kKeys ? shape.key_element(row, dim) : shape.value_element(row, dim);
}

// Element `dim` of a token's key or value.
inline float read_element(const std::byte* page, const PageShape& shape, Half half, int64_t head,
                          int64_t row, int64_t dim) {
  const std::byte* from = page + offset_of(shape, half, head);
  const int64_t i = element_of(shape, half, row, dim);
  switch (shape.type) {
    case DType::kFloat32: return reinterpret_cast<const float*>(from)[i];
    case DType::kFloat16: return to_float(reinterpret_cast<const f16*>(from)[i]);
    case DType::kBFloat16: return to_float(reinterpret_cast<const bf16*>(from)[i]);
    case DType::kInt8:
      return *reinterpret_cast<const float*>(from + shape.scale_offset(row)) *
             static_cast<float>(reinterpret_cast<const int8_t*>(from)[i]);
  }
  return 0;
}

// The scale of an int8 page's row: Note [Int8].
inline float scale_of(const float* numbers, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(numbers[i])) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::abs(numbers[i]));
  }
  const float scale = largest / 127;
  return scale < std::numeric_limits<float>::min() ? 0 : scale;
}

// Writes a token's key or value, [head_dim], rounded to nearest even.
inline void write_row(std::byte* page, const PageShape& shape, Half half, int64_t head, int64_t row,
                      const float* numbers) {
  std::byte* to = page + offset_of(shape, half, head);
  const float scale = shape.has_scales() ? scale_of(numbers, shape.head_dim) : 1;
  if (shape.has_scales()) *reinterpret_cast<float*>(to + shape.scale_offset(row)) = scale;
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    const int64_t i = element_of(shape, half, row, d);
    switch (shape.type) {
      case DType::kFloat32: reinterpret_cast<float*>(to)[i] = numbers[d]; break;
      case DType::kFloat16: reinterpret_cast<f16*>(to)[i] = to_f16(numbers[d]); break;
      case DType::kBFloat16: reinterpret_cast<bf16*>(to)[i] = to_bf16(numbers[d]); break;
      case DType::kInt8:
        reinterpret_cast<int8_t*>(to)[i] =
            scale > 0 ? static_cast<int8_t>(std::nearbyint(numbers[d] / scale)) : 0;
        break;
    }
  }
}

}  // namespace sinkstream::reference
