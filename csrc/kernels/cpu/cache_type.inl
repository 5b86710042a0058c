// What the ops append, evict and attention know about the number types of a cache.
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

SINKSTREAM_INLINE Vec load_as(const float* from) { return load(from); }
SINKSTREAM_INLINE Vec load_as(const f16* from) { return load_f16(from); }
SINKSTREAM_INLINE Vec load_as(const bf16* from) { return load_bf16(from); }

// Widens `from` [head_dim] to `to`; both have room for whole vectors.
template <typename T>
SINKSTREAM_INLINE void widen_head(const T* from, int64_t head_dim, float* to) {
  for (int64_t d = 0; d < head_dim; d += kLanes) store(to + d, load_as(from + d));
}

// Rounds `from` [head_dim] to `to`; both have room for whole vectors.
template <typename T>
SINKSTREAM_INLINE void round_head(const float* from, int64_t head_dim, T* to) {
  for (int64_t d = 0; d < head_dim; d += kLanes) store_as(to + d, load(from + d));
}
