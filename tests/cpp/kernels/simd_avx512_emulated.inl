// Sixteen lanes in plain code: the interface of csrc/kernels/cpu/simd_avx512.inl and, bit for bit,
// its arithmetic. So the bodies' AVX-512 paths are tested on machines without it. Include after
// kernels/emulated_lanes.h, which is not inlined: sixteen calls at each use would overwhelm the
// compiler.
constexpr int kLanes = 16;

#include "kernels/cpu/simd.inl"

SINKSTREAM_INLINE Vec fma(Vec a, Vec b, Vec c) {
  emulated_lanes::fma(a, b, c);
  return c;
}
SINKSTREAM_INLINE Vec fma_once(Vec a, Vec b, Vec c) { return fma(a, b, c); }
SINKSTREAM_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
SINKSTREAM_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }

SINKSTREAM_INLINE Vec load_f16(const f16* from) {
  Vec x;
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = to_float(from[lane]);
  return x;
}
SINKSTREAM_INLINE void store_f16(f16* to, Vec x) {
  for (int lane = 0; lane < kLanes; ++lane) to[lane] = to_f16(x[lane]);
}

SINKSTREAM_INLINE IntVec load_bytes(const int8_t* from) {
  IntVec x;
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = from[lane];
  return x;
}

SINKSTREAM_INLINE Vec dot_bf16(Vec acc, UintVec a, UintVec b) {
  emulated_lanes::dot_bf16(acc, a, b);
  return acc;
}

// Alternates from call to call: it changes no bit, and every machine tests both.
inline bool dots_are_slow() {
  static int is_slow = 0;
  return __atomic_xor_fetch(&is_slow, 1, __ATOMIC_RELAXED) != 0;
}

using HalfwordsVec = uint16_t __attribute__((vector_size(64)));

SINKSTREAM_INLINE UintVec look_up(UintVec indices, UintVec table) {
  const auto wanted = reinterpret_cast<HalfwordsVec>(indices);
  const auto entries = reinterpret_cast<HalfwordsVec>(table);
  HalfwordsVec found{};
  for (int i = 0; i < 32; ++i) found[i] = entries[wanted[i] & 31];
  return reinterpret_cast<UintVec>(found);
}

SINKSTREAM_INLINE UintVec look_up(UintVec indices, UintVec low, UintVec high) {
  const UintVec is_high = (indices >> 5 & 0x00010001) * 0xffff;
  return (look_up(indices, low) & ~is_high) | (look_up(indices, high) & is_high);
}

#include "kernels/cpu/look_up_words.inl"

SINKSTREAM_INLINE UintVec look_up_bytes(UintVec indices, const int (&values)[16]) {
  using Bytes = uint8_t __attribute__((vector_size(64)));
  const auto wanted = reinterpret_cast<Bytes>(indices);
  Bytes found{};
  for (int i = 0; i < 64; ++i) found[i] = static_cast<uint8_t>(values[wanted[i] & 15]);
  return reinterpret_cast<UintVec>(found);
}

template <int kByte>
SINKSTREAM_INLINE UintVec byte_on_top(UintVec words) {
  return words >> (8 * kByte) << 24;
}

// acc + both products of each lane; no integer is −32768.
SINKSTREAM_INLINE IntVec dot_pairs(IntVec acc, PairVec a, PairVec b) {
  const auto left = reinterpret_cast<IntVec>(a), right = reinterpret_cast<IntVec>(b);
  return acc + (left << 16 >> 16) * (right << 16 >> 16) + (left >> 16) * (right >> 16);
}

constexpr int kByteOffset = 128;
template <bool kSigned>
SINKSTREAM_INLINE IntVec dot_bytes(IntVec acc, UintVec weights, UintVec inputs) {
  emulated_lanes::dot_bytes(acc, weights, inputs);
  return acc;
}
