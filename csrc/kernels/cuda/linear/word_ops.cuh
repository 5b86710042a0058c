// 32-bit words for linear maps: streaming loads from device memory, and arithmetic on two bf16 at a
// time. Plain C++ with SINKSTREAM_CUDA_EMULATED.
#pragma once

#include "kernels/cuda/portable.h"

namespace sinkstream::cuda {

#if defined(SINKSTREAM_CUDA_EMULATED)

inline uint4 load_streaming(const uint4* address) { return *address; }
inline uint2 load_streaming(const uint2* address) { return *address; }

#else

// For data that is constant while the kernel runs and not reused soon: it does not evict reused
// data from L1.
__device__ inline uint4 load_streaming(const uint4* address) {
  uint4 words;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(address));
  return words;
}
__device__ inline uint2 load_streaming(const uint2* address) {
  uint2 words;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "l"(address));
  return words;
}

#endif

// The two numbers of a word, the one in the low half first.
__device__ inline float2 bf16_floats(uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
__device__ inline float2 f16_floats(uint32_t word) {
  const auto low = uint16_t(word), high = uint16_t(word >> 16);
  f16 first, second;
  memcpy(&first, &low, 2);
  memcpy(&second, &high, 2);
  return make_float2(to_float(first), to_float(second));
}

// word & mask | bits, in one instruction.
__device__ inline uint32_t merge_bits(uint32_t word, uint32_t mask, uint32_t bits) {
#if defined(SINKSTREAM_CUDA_EMULATED)
  return (word & mask) | bits;
#else
  uint32_t merged;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(merged) : "r"(word), "r"(mask), "r"(bits));
  return merged;
#endif
}

// a · b + c for both bf16 of a word, each rounded once.
__device__ inline uint32_t multiply_add_pairs(uint32_t a, uint32_t b, uint32_t c) {
#if defined(SINKSTREAM_CUDA_EMULATED)
  const float2 x = bf16_floats(a), y = bf16_floats(b), z = bf16_floats(c);
  return pack<bf16>(fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y));
#else
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#endif
}

}  // namespace sinkstream::cuda
