// Vectors of kLanes floats: what all tables share, written with GCC's vector operators, so that
// bodies use + − * / < & | << >> and ?: directly. A table's own simd_*.inl defines kLanes first,
// includes this file, and adds the few operations that need an instruction:
//
//   fma  fma_once  max  min  load_f16  store_f16  load_bytes  look_up_values  look_up_bytes
//   dot_pairs  dot_bytes
//
// Included inside an anonymous namespace. Everything is always inlined: code compiled with wide
// instructions must leave no symbol that the linker could pick for the rest of the program.

#define SINKSTREAM_INLINE inline __attribute__((always_inline))

using Vec = float __attribute__((vector_size(4 * kLanes)));
using IntVec = int32_t __attribute__((vector_size(4 * kLanes)));
using UintVec = uint32_t __attribute__((vector_size(4 * kLanes)));
using HalfwordVec = uint16_t __attribute__((vector_size(2 * kLanes)));  // 16 bits per lane
using CodeVec = int8_t __attribute__((vector_size(kLanes)));            // 8 bits per lane
using PairVec = int16_t __attribute__((vector_size(4 * kLanes)));       // two integers per lane

// The same at any address; may_alias, because bytes of panels and pages are read through them.
using LooseVec = float __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
using LooseUintVec = uint32_t __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
using LooseHalfwordVec = uint16_t __attribute__((vector_size(2 * kLanes), aligned(1), may_alias));
using LooseCodeVec = int8_t __attribute__((vector_size(kLanes), aligned(1), may_alias));

SINKSTREAM_INLINE Vec load(const float* from) { return *reinterpret_cast<const LooseVec*>(from); }
SINKSTREAM_INLINE void store(float* to, Vec x) { *reinterpret_cast<LooseVec*>(to) = x; }
SINKSTREAM_INLINE UintVec load_words(const void* from) {
  return *static_cast<const LooseUintVec*>(from);
}
SINKSTREAM_INLINE HalfwordVec load_halfwords(const void* from) {
  return *static_cast<const LooseHalfwordVec*>(from);
}
SINKSTREAM_INLINE void store_words(void* to, UintVec x) { *static_cast<LooseUintVec*>(to) = x; }
SINKSTREAM_INLINE void store_halfwords(void* to, HalfwordVec x) {
  *static_cast<LooseHalfwordVec*>(to) = x;
}

// The first `count` lanes, in [0, kLanes]; the others read as `others` and are not written.
SINKSTREAM_INLINE Vec load_first(const float* from, int64_t count, float others = 0) {
  Vec x = others - Vec{};
  for (int64_t lane = 0; lane < count; ++lane) x[lane] = from[lane];
  return x;
}
SINKSTREAM_INLINE void store_first(float* to, Vec x, int64_t count) {
  for (int64_t lane = 0; lane < count; ++lane) to[lane] = x[lane];
}

// x − 0 is x for every x, including −0; 0 + x is not.
SINKSTREAM_INLINE Vec broadcast(float x) { return x - Vec{}; }
SINKSTREAM_INLINE UintVec broadcast_word(uint32_t x) { return x - UintVec{}; }
SINKSTREAM_INLINE IntVec broadcast_int(int32_t x) { return x - IntVec{}; }

// Bit patterns.
SINKSTREAM_INLINE IntVec as_int(Vec x) { return reinterpret_cast<IntVec>(x); }
SINKSTREAM_INLINE UintVec as_words(Vec x) { return reinterpret_cast<UintVec>(x); }
SINKSTREAM_INLINE Vec as_float(IntVec x) { return reinterpret_cast<Vec>(x); }
SINKSTREAM_INLINE Vec as_float(UintVec x) { return reinterpret_cast<Vec>(x); }

// Conversions.
SINKSTREAM_INLINE Vec to_float(IntVec x) { return __builtin_convertvector(x, Vec); }

// To the nearest integer, ties to even; |x| < 2^22. Adding the shifter rounds to an integer, in the
// low bits.
SINKSTREAM_INLINE IntVec round_to_int(Vec x) {
  constexpr float kShifter = 0x1.8p23f;
  return as_int(x + kShifter) - as_int(broadcast(kShifter));
}

// int8 codes. `load_bytes`, which widens them, is in each table's own file.
SINKSTREAM_INLINE void store_codes(int8_t* to, IntVec codes) {
  *reinterpret_cast<LooseCodeVec*>(to) = __builtin_convertvector(codes, CodeVec);
}

// Shifts each half of each word right, or left if `count` is negative, filling with zeros.
SINKSTREAM_INLINE UintVec shift_halfwords(UintVec x, int count) {
  using Halves = uint16_t __attribute__((vector_size(4 * kLanes)));
  const auto halves = reinterpret_cast<Halves>(x);
  return reinterpret_cast<UintVec>(count < 0 ? halves << -count : halves >> count);
}

// The bits of `chosen` where those of `mask` are set, of `otherwise` elsewhere.
SINKSTREAM_INLINE UintVec select_bits(uint32_t mask, UintVec chosen, UintVec otherwise) {
  return (chosen & mask) | (otherwise & ~mask);
}

// `mask` comes from a comparison: each lane is all ones or all zeros.
SINKSTREAM_INLINE Vec select(IntVec mask, Vec chosen, Vec otherwise) {
  return mask ? chosen : otherwise;
}

// bfloat16 in the upper half of each word, rounded to nearest even; NaN stays NaN.
SINKSTREAM_INLINE UintVec bf16_words(Vec x) {
  const UintVec bits = as_words(x);
  const UintVec rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const UintVec quiet = bits | 0x400000;
  return ((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) & 0xffff0000;
}
SINKSTREAM_INLINE Vec round_bf16(Vec x) { return as_float(bf16_words(x)); }

SINKSTREAM_INLINE Vec load_bf16(const bf16* from) {
  return as_float(__builtin_convertvector(load_halfwords(from), UintVec) << 16);
}
SINKSTREAM_INLINE void store_bf16(bf16* to, Vec x) {
  store_halfwords(to, __builtin_convertvector(bf16_words(x) >> 16, HalfwordVec));
}

// Adjacent pairs, the even element first: [kLanes][2].
SINKSTREAM_INLINE UintVec bf16_pairs(Vec even, Vec odd) {
  return (bf16_words(even) >> 16) | bf16_words(odd);
}

// The vector with its lanes exchanged: lane i gets lane i ^ distance.
template <int kDistance, typename V>
SINKSTREAM_INLINE V exchange(V x) {
  IntVec source{};
  for (int lane = 0; lane < kLanes; ++lane) source[lane] = lane ^ kDistance;
  return __builtin_shuffle(x, source);
}

// Sum and maximum over lanes in one fixed tree: the upper half is added to the lower, repeatedly.
// Sums of integers must not overflow.
template <int kDistance = kLanes / 2, typename V>
SINKSTREAM_INLINE auto reduce_add(V x) {
  if constexpr (kDistance > 0) {
    return reduce_add<kDistance / 2>(x + exchange<kDistance>(x));
  } else {
    return x[0];
  }
}
template <int kDistance = kLanes / 2, typename V>
SINKSTREAM_INLINE auto reduce_max(V x) {
  if constexpr (kDistance > 0) {
    const V other = exchange<kDistance>(x);
    return reduce_max<kDistance / 2>(x > other ? x : other);
  } else {
    return x[0];
  }
}

// The largest |x| of `count` floats, a multiple of kLanes; NaN if there is one.
SINKSTREAM_INLINE float largest_magnitude(const float* from, int64_t count) {
  IntVec largest{};  // magnitudes keep their order as bit patterns, with NaN above infinity
  for (int64_t i = 0; i < count; i += kLanes) {
    const IntVec magnitude = as_int(load(from + i)) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  return __builtin_bit_cast(float, reduce_max(largest));
}

// Whether prefetches go to L1 rather than L2. With sixteen lanes, L2 was up to twice as fast on Zen
// 4 and L1 up to 1.5 times as fast on Zen 5 (docs/notebook/2026-11-25-prefetch-on-zen5.md); not
// measured on other processors with sixteen lanes.
SINKSTREAM_INLINE bool prefetches_to_l1() { return kLanes < 16 || kPrefetchToL1; }

// Prefetches a line of memory that will soon be read.
template <bool kToL1>
SINKSTREAM_INLINE void prefetch_to(const void* address) {
  __builtin_prefetch(address, 0, kToL1 ? 3 : 2);
}
SINKSTREAM_INLINE void prefetch(const void* address) {
  if (prefetches_to_l1()) {
    prefetch_to<true>(address);
  } else {
    prefetch_to<false>(address);
  }
}
