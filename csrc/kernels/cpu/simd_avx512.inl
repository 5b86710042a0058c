// Sixteen lanes: AVX-512 with BW, VL and BF16.
constexpr int kLanes = 16;

#include "kernels/cpu/simd.inl"

SINKSTREAM_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
SINKSTREAM_INLINE Vec fma_once(Vec a, Vec b, Vec c) { return fma(a, b, c); }
SINKSTREAM_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b if either is NaN
SINKSTREAM_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }  // likewise

SINKSTREAM_INLINE Vec load_f16(const f16* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
SINKSTREAM_INLINE void store_f16(f16* to, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

SINKSTREAM_INLINE IntVec load_bytes(const int8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<IntVec>(_mm512_cvtepi8_epi32(bytes));
}

// acc + both products of each word's bfloat16: first the upper ones', then the lower ones'.
// Denormals count as zero, in and out.
SINKSTREAM_INLINE Vec dot_bf16(Vec acc, UintVec a, UintVec b) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

SINKSTREAM_INLINE bool dots_are_slow() { return kDotsAreSlow; }

// Looks up each halfword of `indices` in a table of 32 halfwords, by its low five bits.
SINKSTREAM_INLINE UintVec look_up(UintVec indices, UintVec table) {
  return reinterpret_cast<UintVec>(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(indices),
                                                            reinterpret_cast<__m512i>(table)));
}

// The same in a table of 64, by the low six bits.
SINKSTREAM_INLINE UintVec look_up(UintVec indices, UintVec low, UintVec high) {
  return reinterpret_cast<UintVec>(_mm512_permutex2var_epi16(reinterpret_cast<__m512i>(low),
                                                             reinterpret_cast<__m512i>(indices),
                                                             reinterpret_cast<__m512i>(high)));
}

#include "kernels/cpu/look_up_words.inl"

// Looks up the low four bits of each byte, whose other bits are zero.
SINKSTREAM_INLINE UintVec look_up_bytes(UintVec indices, const int (&values)[16]) {
  __m128i table = {};
  for (int i = 0; i < 16; ++i)
    reinterpret_cast<int8_t*>(&table)[i] = static_cast<int8_t>(values[i]);
  return reinterpret_cast<UintVec>(
      _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), reinterpret_cast<__m512i>(indices)));
}

// Byte kByte of each word, moved to the top byte; zeros below. One operation each.
template <int kByte>
SINKSTREAM_INLINE UintVec byte_on_top(UintVec words) {
  if constexpr (kByte == 0) return words << 24;
  if constexpr (kByte == 3) return words & 0xff000000;
  UintVec sources{};  // a byte of 0x80 stands for zero
  for (uint32_t i = 0; i < kLanes; ++i) sources[i] = (i % 4 * 4 + kByte) << 24 | 0x808080;
  return reinterpret_cast<UintVec>(
      _mm512_shuffle_epi8(reinterpret_cast<__m512i>(words), reinterpret_cast<__m512i>(sources)));
}

// acc + both products of each lane; no integer is −32768.
SINKSTREAM_INLINE IntVec dot_pairs(IntVec acc, PairVec a, PairVec b) {
  return reinterpret_cast<IntVec>(_mm512_dpwssd_epi32(
      reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}

// acc + the four products of each lane, of unsigned bytes and signed ones.
constexpr int kByteOffset = 128;  // what makes signed weights unsigned
template <bool kSigned>
SINKSTREAM_INLINE IntVec dot_bytes(IntVec acc, UintVec weights, UintVec inputs) {
  return reinterpret_cast<IntVec>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(acc),
                                                      reinterpret_cast<__m512i>(weights),
                                                      reinterpret_cast<__m512i>(inputs)));
}
