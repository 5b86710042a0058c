// One number of a page, whatever the page's type.
#pragma once

#include "kernels/page.h"

namespace sinkstream::reference {

// Element i of a head's keys or values, which lie at `head`.
inline float read_element(const std::byte* head, int64_t i, DType type) {
  switch (type) {
    case DType::kFloat32: return reinterpret_cast<const float*>(head)[i];
    case DType::kFloat16: return to_float(reinterpret_cast<const f16*>(head)[i]);
    case DType::kBFloat16: return to_float(reinterpret_cast<const bf16*>(head)[i]);
  }
  return 0;
}

// Rounds to nearest even.
inline void write_element(std::byte* head, int64_t i, DType type, float value) {
  switch (type) {
    case DType::kFloat32: reinterpret_cast<float*>(head)[i] = value; return;
    case DType::kFloat16: reinterpret_cast<f16*>(head)[i] = to_f16(value); return;
    case DType::kBFloat16: reinterpret_cast<bf16*>(head)[i] = to_bf16(value); return;
  }
}

}  // namespace sinkstream::reference
