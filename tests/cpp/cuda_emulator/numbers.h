// CUDA's vectors and bits, and the kernels' number types, as plain C++.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/dtype.h"

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  unsigned x, y, z;
};

struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

namespace sinkstream::cuda {

using sinkstream::bf16;
using sinkstream::f16;
using sinkstream::to_float;

inline float to_float(float x) { return x; }

template <typename T>
T rounded(float x);
template <>
inline bf16 rounded<bf16>(float x) {
  return to_bf16(x);
}
template <>
inline f16 rounded<f16>(float x) {
  return to_f16(x);
}
template <>
inline float rounded<float>(float x) {
  return x;
}

template <typename T>
uint32_t pack(float first, float second) {
  return uint32_t{rounded<T>(first).bits} | uint32_t{rounded<T>(second).bits} << 16;
}

inline float exp_approx(float x) { return std::exp(x); }

}  // namespace sinkstream::cuda
