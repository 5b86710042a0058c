// Eight lanes: AVX2, FMA and F16C.
constexpr int kLanes = 8;

#include "kernels/cpu/simd.inl"

SINKSTREAM_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
SINKSTREAM_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }  // b if either is NaN
SINKSTREAM_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }  // likewise

SINKSTREAM_INLINE Vec load_f16(const f16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
SINKSTREAM_INLINE void store_f16(f16* to, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

SINKSTREAM_INLINE Vec load_codes(const int8_t* from) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
}

// acc + both products of each lane; no integer is −32768.
SINKSTREAM_INLINE IntVec dot_pairs(IntVec acc, PairVec a, PairVec b) {
  acc += reinterpret_cast<IntVec>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  // The compiler would otherwise form all products first and add them as a tree, in memory.
  asm("" : "+x"(acc));
  return acc;
}
