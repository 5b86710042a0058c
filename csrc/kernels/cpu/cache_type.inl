// What the ops append and attention know about the number types of a cache.
#pragma once

constexpr int64_t kMostHeadDim = 256;

// Elements of T that stand for rows (or dimensions) 2k and 2k + 1 of one column: see page.h.
template <typename T>
constexpr bool kPaired = false;
template <>
constexpr bool kPaired<bf16> = true;

template <typename T>
constexpr DType kTypeOf = DType::kFloat32;
template <>
constexpr DType kTypeOf<f16> = DType::kFloat16;
template <>
constexpr DType kTypeOf<bf16> = DType::kBFloat16;

// Calls `body` with a null T* of the type that `type` names.
template <typename Body>
SINKSTREAM_INLINE void with_cache_type(DType type, const Body& body) {
  switch (type) {
    case DType::kFloat32: return body(static_cast<float*>(nullptr));
    case DType::kFloat16: return body(static_cast<f16*>(nullptr));
    case DType::kBFloat16: return body(static_cast<bf16*>(nullptr));
  }
}

// Rounds to nearest even.
SINKSTREAM_INLINE void store_as(float* to, Vec x) { store(to, x); }
SINKSTREAM_INLINE void store_as(f16* to, Vec x) { store_f16(to, x); }
SINKSTREAM_INLINE void store_as(bf16* to, Vec x) { store_bf16(to, x); }
