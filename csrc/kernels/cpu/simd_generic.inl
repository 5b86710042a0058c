// Four lanes with the compiler's own vectors: any processor.
constexpr int kLanes = 4;

#include "kernels/cpu/simd.inl"

// Two roundings; the same everywhere, since expressions are never contracted.
SINKSTREAM_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }

// a · b + c with one rounding. The product is exact in double. The sum is rounded to odd: a result
// that is not exact gets the neighbor with an odd last bit. So rounding it again, to float, is as
// good as rounding once, because double has more than two bits more. Not inlined: it is long, and
// used in every kernel.
__attribute__((noinline)) Vec fma_once(Vec a, Vec b, Vec c) {
  using Doubles = double __attribute__((vector_size(8 * kLanes)));
  using Words = int64_t __attribute__((vector_size(8 * kLanes)));
  const Doubles product = __builtin_convertvector(a, Doubles) * __builtin_convertvector(b, Doubles);
  const Doubles addend = __builtin_convertvector(c, Doubles);
  const Doubles sum = product + addend;
  const Doubles from_product = sum - addend;
  const Doubles error = (product - from_product) + (addend - (sum - from_product));
  const auto bits = reinterpret_cast<Words>(sum);
  // Towards the exact sum: up in magnitude if the error has the sum's sign. Words are −1 or 0.
  const Words is_inexact = (error < 0.0) | (error > 0.0);
  const Words is_even = (bits & 1) - 1;
  const Words step = (reinterpret_cast<Words>(error) ^ bits) >> 63 | 1;
  const Words odd = bits + (step & is_inexact & is_even);
  return __builtin_convertvector(reinterpret_cast<Doubles>(odd), Vec);
}
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

// Where the processor shuffles bytes, a lookup is one instruction. Elsewhere it goes byte by byte,
// which is long, and unrolled in every kernel whose format needs it: it would be 40 % of the table.
#if defined(__SSSE3__) || defined(__ARM_NEON)
#define SINKSTREAM_INLINE_LOOKUP SINKSTREAM_INLINE
#else
#define SINKSTREAM_INLINE_LOOKUP __attribute__((noinline))
#endif

// The value of each half's low four bits, as 16-bit integers.
SINKSTREAM_INLINE_LOOKUP PairVec look_up_values(UintVec codes, const int (&values)[16]) {
  using Bytes = int8_t __attribute__((vector_size(16)));
  Bytes table{};
  for (int i = 0; i < 16; ++i) table[i] = static_cast<int8_t>(values[i]);
  const auto indices = reinterpret_cast<Bytes>(codes & 0x000f000f);
  return reinterpret_cast<PairVec>(__builtin_shuffle(table, indices)) << 8 >> 8;
}

// Looks up the low four bits of each byte, whose other bits are zero.
SINKSTREAM_INLINE_LOOKUP UintVec look_up_bytes(UintVec indices, const int (&values)[16]) {
  using Bytes = int8_t __attribute__((vector_size(16)));
  Bytes table{};
  for (int i = 0; i < 16; ++i) table[i] = static_cast<int8_t>(values[i]);
  return reinterpret_cast<UintVec>(__builtin_shuffle(table, reinterpret_cast<Bytes>(indices)));
}

// acc + both products of each lane; no integer is −32768.
SINKSTREAM_INLINE IntVec dot_pairs(IntVec acc, PairVec a, PairVec b) {
  const auto left = reinterpret_cast<IntVec>(a), right = reinterpret_cast<IntVec>(b);
  return acc + (left << 16 >> 16) * (right << 16 >> 16) + (left >> 16) * (right >> 16);
}

// acc + the four products of each lane, of signed bytes.
constexpr int kByteOffset = 0;
template <bool kSigned>
SINKSTREAM_INLINE IntVec dot_bytes(IntVec acc, UintVec weights, UintVec inputs) {
  const auto left = reinterpret_cast<PairVec>(weights), right = reinterpret_cast<PairVec>(inputs);
  acc = dot_pairs(acc, left << 8 >> 8, right << 8 >> 8);
  return dot_pairs(acc, left >> 8, right >> 8);
}
