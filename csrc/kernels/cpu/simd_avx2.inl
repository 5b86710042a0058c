// Eight lanes: AVX2, FMA and F16C.
constexpr int kLanes = 8;

#include "kernels/cpu/simd.inl"

SINKSTREAM_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
SINKSTREAM_INLINE Vec fma_once(Vec a, Vec b, Vec c) { return fma(a, b, c); }
SINKSTREAM_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }  // b if either is NaN
SINKSTREAM_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }  // likewise

SINKSTREAM_INLINE Vec load_f16(const f16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
SINKSTREAM_INLINE void store_f16(f16* to, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

SINKSTREAM_INLINE IntVec load_bytes(const int8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<IntVec>(_mm256_cvtepi8_epi32(bytes));
}

// The value of each half's low four bits, as 16-bit integers. An index byte above 127 gives zero.
SINKSTREAM_INLINE PairVec look_up_values(UintVec codes, const int (&values)[16]) {
  using Bytes = int8_t __attribute__((vector_size(32)));
  Bytes table{};
  for (int i = 0; i < 32; ++i) table[i] = static_cast<int8_t>(values[i % 16]);
  const UintVec indices = (codes & 0x000f000f) | 0x80008000;
  const auto low_bytes = reinterpret_cast<PairVec>(
      _mm256_shuffle_epi8(reinterpret_cast<__m256i>(table), reinterpret_cast<__m256i>(indices)));
  return low_bytes << 8 >> 8;
}

// Looks up the low four bits of each byte, whose other bits are zero.
SINKSTREAM_INLINE UintVec look_up_bytes(UintVec indices, const int (&values)[16]) {
  using Bytes = int8_t __attribute__((vector_size(32)));
  Bytes table{};
  for (int i = 0; i < 32; ++i) table[i] = static_cast<int8_t>(values[i % 16]);
  return reinterpret_cast<UintVec>(
      _mm256_shuffle_epi8(reinterpret_cast<__m256i>(table), reinterpret_cast<__m256i>(indices)));
}

// acc + both products of each lane; no integer is −32768.
SINKSTREAM_INLINE IntVec dot_pairs(IntVec acc, PairVec a, PairVec b) {
  acc += reinterpret_cast<IntVec>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  // The compiler would otherwise form all products first and add them as a tree, in memory.
  asm("" : "+x"(acc));
  return acc;
}

// acc + the four products of each lane; no input is −128. `vpmaddubsw` multiplies unsigned bytes by
// signed ones and adds two products in 16 bits, which would saturate beyond 32767. Signed weights
// are at most 128 without their sign, which the inputs get instead: 2 · 128 · 127. Unsigned ones
// are at most 63.
constexpr int kByteOffset = 0;
template <bool kSigned>
SINKSTREAM_INLINE IntVec dot_bytes(IntVec acc, UintVec weights, UintVec inputs) {
  auto left = reinterpret_cast<__m256i>(weights), right = reinterpret_cast<__m256i>(inputs);
  if constexpr (kSigned) {
    right = _mm256_sign_epi8(right, left);
    left = _mm256_abs_epi8(left);
  }
  const __m256i pairs = _mm256_maddubs_epi16(left, right);
  acc += reinterpret_cast<IntVec>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  asm("" : "+x"(acc));  // as above
  return acc;
}
