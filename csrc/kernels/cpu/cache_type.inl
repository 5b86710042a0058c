// The number types of a cache, for the ops append, evict and attention.
#pragma once

constexpr int64_t kMostHeadDim = 512;

// Whether rows (or dimensions) 2k and 2k + 1 of a column are adjacent: see page.h.
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
template <>
constexpr DType kTypeOf<int8_t> = DType::kInt8;

// Whether elements are codes, to be multiplied by their row's scale.
template <typename T>
constexpr bool kScaled = false;
template <>
constexpr bool kScaled<int8_t> = true;

constexpr int64_t first_scale_offset(int64_t head_dim) {
  return PageShape{.kv_heads = 1, .head_dim = head_dim, .type = DType::kInt8}.scale_offset(0);
}

// The scales [kPageRows] of a head's keys or values.
SINKSTREAM_INLINE const float* scales_of(const int8_t* codes, int64_t head_dim) {
  return reinterpret_cast<const float*>(codes + first_scale_offset(head_dim));
}
SINKSTREAM_INLINE float* scales_of(int8_t* codes, int64_t head_dim) {
  return reinterpret_cast<float*>(codes + first_scale_offset(head_dim));
}

// Calls `body` with a null T* of the type that `type` names.
template <typename Body>
SINKSTREAM_INLINE void with_cache_type(DType type, const Body& body) {
  switch (type) {
    case DType::kFloat32: return body(static_cast<float*>(nullptr));
    case DType::kFloat16: return body(static_cast<f16*>(nullptr));
    case DType::kBFloat16: return body(static_cast<bf16*>(nullptr));
    case DType::kInt8: return body(static_cast<int8_t*>(nullptr));
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
SINKSTREAM_INLINE void widen_head(const int8_t* from, float scale, int64_t head_dim, float* to) {
  for (int64_t d = 0; d < head_dim; d += kLanes)
    store(to + d, to_float(load_bytes(from + d)) * scale);
}

// Rounds `from` [head_dim] to `to`; both have room for whole vectors.
template <typename T>
SINKSTREAM_INLINE void round_head(const float* from, int64_t head_dim, T* to) {
  for (int64_t d = 0; d < head_dim; d += kLanes) store_as(to + d, load(from + d));
}

// The scale of `from` [head_dim]: Note [Int8].
SINKSTREAM_INLINE float scale_of(const float* from, int64_t head_dim) {
  const float largest = largest_magnitude(from, head_dim);
  if (!(largest < __builtin_inff())) return __builtin_nanf("");
  const float scale = largest / 127;
  return scale < __FLT_MIN__ ? 0 : scale;
}

// The same, to codes; returns their scale. `from` is zero in the rest of its last vector.
SINKSTREAM_INLINE float round_head(const float* from, int64_t head_dim, int8_t* to) {
  const float scale = scale_of(from, head_dim);
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    store_codes(to + d, scale > 0 ? round_to_int(load(from + d) / scale) : IntVec{});
  }
  return scale;
}

// Writes `exact` [head_dim] into a row of a head's keys or values, which begin at `half`; element
// `dim` has index `index_of(dim)`. `exact` has room for whole vectors, zero past head_dim. Writes
// single elements: another thread may be writing the adjacent row of the same pair.
template <typename T, typename Index>
SINKSTREAM_INLINE void write_row(T* half, int64_t row, const float* exact, int64_t head_dim,
                                 const Index& index_of) {
  alignas(64) T rounded[kMostHeadDim + kLanes];
  if constexpr (kScaled<T>) {
    scales_of(half, head_dim)[row] = round_head(exact, head_dim, rounded);
  } else {
    round_head(exact, head_dim, rounded);
  }
  for (int64_t d = 0; d < head_dim; ++d) half[index_of(d)] = rounded[d];
}
