// 32-bit words: streaming loads from device memory, arithmetic on two bf16 at a time, int8 codes as
// bf16, and table look-up. Plain C++ with SINKSTREAM_CUDA_EMULATED.
#pragma once

#include <array>

#include "kernels/cuda/portable.h"
#include "kernels/panel_format.h"

namespace sinkstream::cuda {

#if defined(SINKSTREAM_CUDA_EMULATED)

inline uint4 load_streaming(const uint4* address) { return *address; }
inline uint2 load_streaming(const uint2* address) { return *address; }
inline uint32_t load_streaming(const uint32_t* address) { return *address; }

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
__device__ inline uint32_t load_streaming(const uint32_t* address) {
  uint32_t word;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(word) : "l"(address));
  return word;
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

// Four bytes of the eight of `first` and `second`: byte i is the one whose number, below 8, is in
// bits 4i to 4i + 3 of `numbers`.
__device__ inline uint32_t select_bytes(uint32_t first, uint32_t second, uint32_t numbers) {
#if defined(SINKSTREAM_CUDA_EMULATED)
  const uint64_t all = uint64_t{second} << 32 | first;
  uint32_t selected = 0;
  for (int i = 0; i < 4; ++i) {
    selected |= uint32_t(all >> ((numbers >> (4 * i) & 7) * 8) & 255) << (8 * i);
  }
  return selected;
#else
  return __byte_perm(first, second, numbers);
#endif
}

constexpr uint32_t kOnes = 0x3f803f80;       // two bf16 1
constexpr uint32_t kMinusOnes = 0xbf80bf80;  // −1
constexpr uint32_t k128 = 0x43004300;        // 128

// The int8 codes in the low bytes of both halves. With sign bit s and low seven bits c, a code is c
// − 128 s: (128 + c) − (128 + 128 s), where the latter is 0x4300 with the sign bit set.
__device__ inline uint32_t int8_pair(uint32_t word) {
  const uint32_t low = merge_bits(word, 0x007f007f, k128);
  const uint32_t sign = merge_bits(word, 0x00800080, k128);
  return multiply_add_pairs(sign, kMinusOnes, low);
}

// The four int8 codes of a word.
__device__ inline uint2 int8_quad(uint32_t word) {
  return make_uint2(int8_pair(select_bytes(word, word, 0x1100)),
                    int8_pair(select_bytes(word, word, 0x3322)));
}

// The FP8 codes (E4M3, none of them NaN) in the low bytes of both halves. As the high bits of a
// float16 they stand for 2^-8 times their number, subnormal ones too.
__device__ inline uint32_t e4m3_pair(uint32_t word) {
  const float2 both = f16_floats((word & 0x007f007f) << 7 | (word & 0x00800080) << 8);
  return pack<bf16>(both.x * 256, both.y * 256);
}

// The zero point in a word of an open block's scales: kScaleBits of kernels/panel_format.h. Codes
// in two's complement are 128 less than those it belongs to.
template <PanelFormat kFormat>
__device__ inline int zero_point_of(uint32_t word) {
  return int(word & ~kScaleBits) - (kFormat.bits == 8 ? 128 : 0);
}

// The int8 values of the four codes in the low 16 bits.
template <CodeValues kValues>
__device__ inline uint32_t look_up(uint32_t codes) {
  constexpr auto kTable = [] {
    std::array<uint32_t, 4> words{};
    for (int code = 0; code < 16; ++code) {
      const int value = value_of({.values = kValues}, code);
      words[code / 4] |= uint32_t(value & 255) << (code % 4 * 8);
    }
    return words;
  }();
  constexpr uint32_t k0 = kTable[0], k1 = kTable[1], k2 = kTable[2], k3 = kTable[3];
  const uint32_t low = select_bytes(k0, k1, codes & 0x7777);
  const uint32_t high = select_bytes(k2, k3, codes & 0x7777);
  // Of each pair of bytes, the one that the code's bit 3 says.
  return select_bytes(low, high, 0x3210 | (codes & 0x8888) >> 1);
}

// 2^(byte − 128); the first two are subnormal.
__device__ inline float power_of_two(uint32_t byte) {
  return __uint_as_float(byte > 1 ? (byte - 1) << 23 : 0x200000u << byte);
}

}  // namespace sinkstream::cuda
