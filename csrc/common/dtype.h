// The number types of activations and caches, and correctly rounded conversions between them. Knows
// nothing about tensors.
#pragma once

#include <cstdint>
#include <cstring>

namespace sinkstream {

// kInt8 is for caches only: quantized values, with scales stored next to them (kernels/page.h).
enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16, kInt8 };

// 16-bit storage; arithmetic is done in float.
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

// The bytes of one number; scales of int8 are not included.
constexpr int64_t bytes_of(DType type) {
  switch (type) {
    case DType::kFloat32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kInt8: return 1;
  }
  return 0;
}

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::kFloat32: return "float32";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kInt8: return "int8";
  }
  return "";
}

inline uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float to_float(bf16 value) { return float_from_bits(uint32_t{value.bits} << 16); }

// Rounds to nearest even; NaN stays NaN.
inline bf16 to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

inline float to_float(f16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1f;
  const uint32_t fraction = value.bits & 0x3ff;
  if (exponent == 31) return float_from_bits(sign | 0x7f800000 | (fraction << 13));
  if (exponent != 0) return float_from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // subnormal or zero, exact
  return float_from_bits(sign | float_bits(magnitude));
}

// Rounds to nearest even; overflow becomes infinity, NaN stays NaN.
inline f16 to_f16(float value) {
  const uint32_t bits = float_bits(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds past 65504
  if (magnitude < 0x38800000) {  // below 2^-14: the target's steps are 2^-24 wide
    const uint32_t shift = 126 - (magnitude >> 23);
    if (shift > 24) return {sign};
    const uint32_t fraction = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t half = 1u << (shift - 1);
    const uint32_t kept = fraction >> shift;
    const uint32_t rest = fraction & ((half << 1) - 1);
    return {static_cast<uint16_t>(sign + kept + (rest > half || (rest == half && (kept & 1))))};
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13))};
}

}  // namespace sinkstream
