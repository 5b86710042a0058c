// Four lanes with the compiler's own vectors: any processor.
constexpr int kLanes = 4;

#include "kernels/cpu/simd.inl"

// Two roundings; the same everywhere, since expressions are never contracted.
SINKSTREAM_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
SINKSTREAM_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }  // b if either is NaN
SINKSTREAM_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }  // likewise

// With integers: the exponent increases by 112, that of infinity and NaN by 224. A subnormal's
// fraction is converted from an integer, because as the bits of a float it would be flushed to
// zero.
SINKSTREAM_INLINE Vec load_f16(const f16* from) {
  const UintVec bits = __builtin_convertvector(load_halfwords(from), UintVec);
  const UintVec magnitude = bits & 0x7fff;
  const UintVec subnormal = as_words(to_float(reinterpret_cast<IntVec>(magnitude)) * 0x1p-24f);
  const UintVec normal = (magnitude << 13) + (112u << 23);
  const UintVec special = (magnitude << 13) + (224u << 23);
  const UintVec chosen = magnitude < 0x400 ? subnormal : magnitude < 0x7c00 ? normal : special;
  return as_float((bits & 0x8000) << 16 | chosen);
}
SINKSTREAM_INLINE void store_f16(f16* to, Vec x) {
  for (int lane = 0; lane < kLanes; ++lane) to[lane] = to_f16(x[lane]);
}

// Each code becomes the four bytes of its lane, and all copies but the top one are shifted out: the
// compiler's own conversion goes lane by lane.
SINKSTREAM_INLINE IntVec load_bytes(const int8_t* from) {
  using Bytes = int8_t __attribute__((vector_size(16)));
  using Halfwords = int16_t __attribute__((vector_size(16)));
  int32_t word;
  __builtin_memcpy(&word, from, sizeof(word));
  const auto codes = reinterpret_cast<Bytes>(IntVec{word});
  const Bytes twice =
      __builtin_shuffle(codes, Bytes{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7});
  const Halfwords four_times =
      __builtin_shuffle(reinterpret_cast<Halfwords>(twice), Halfwords{0, 0, 1, 1, 2, 2, 3, 3});
  return reinterpret_cast<IntVec>(four_times) >> 24;
}

// The value of each half's low four bits, as 16-bit integers.
SINKSTREAM_INLINE PairVec look_up_values(UintVec codes, const int (&values)[16]) {
  using Bytes = int8_t __attribute__((vector_size(16)));
  Bytes table{};
  for (int i = 0; i < 16; ++i) table[i] = static_cast<int8_t>(values[i]);
  const auto indices = reinterpret_cast<Bytes>(codes & 0x000f000f);
  return reinterpret_cast<PairVec>(__builtin_shuffle(table, indices)) << 8 >> 8;
}

// acc + both products of each lane; no integer is −32768.
SINKSTREAM_INLINE IntVec dot_pairs(IntVec acc, PairVec a, PairVec b) {
  const auto left = reinterpret_cast<IntVec>(a), right = reinterpret_cast<IntVec>(b);
  return acc + (left << 16 >> 16) * (right << 16 >> 16) + (left >> 16) * (right >> 16);
}
