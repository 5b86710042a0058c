#include "kernels/emulated_lanes.h"

#include <cstring>

#include "common/dtype.h"

// The same bits with and without the instruction, which rounds as the C library's fmaf does.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SINKSTREAM_WITH_FMA __attribute__((target_clones("fma", "default")))
#else
#define SINKSTREAM_WITH_FMA
#endif

namespace sinkstream::emulated_lanes {
namespace {

// Denormals become zeros of their sign.
inline __attribute__((always_inline)) float flushed(float x) {
  const uint32_t bits = float_bits(x);
  return float_from_bits((bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
}

}  // namespace

SINKSTREAM_WITH_FMA void fma(const Floats& a, const Floats& b, Floats& acc) {
  for (int lane = 0; lane < kCount; ++lane) {
    acc[lane] = __builtin_fmaf(a[lane], b[lane], acc[lane]);
  }
}

SINKSTREAM_WITH_FMA void dot_bf16(Floats& acc, const Words& a, const Words& b) {
  for (int lane = 0; lane < kCount; ++lane) {
    const float odd_a = flushed(float_from_bits(a[lane] & 0xffff0000));
    const float odd_b = flushed(float_from_bits(b[lane] & 0xffff0000));
    const float first = flushed(__builtin_fmaf(odd_a, odd_b, flushed(acc[lane])));
    const float even_a = flushed(float_from_bits(a[lane] << 16));
    const float even_b = flushed(float_from_bits(b[lane] << 16));
    acc[lane] = flushed(__builtin_fmaf(even_a, even_b, first));
  }
}

void dot_bytes(Ints& acc, const Words& a, const Words& b) {
  for (int lane = 0; lane < kCount; ++lane) {
    for (int byte = 0; byte < 4; ++byte) {
      const int weight = a[lane] >> (8 * byte) & 255;
      acc[lane] += weight * static_cast<int8_t>(b[lane] >> (8 * byte) & 255);
    }
  }
}

SINKSTREAM_WITH_FMA void add_tile_row(Floats& sums, const std::byte* inputs,
                                      const std::byte* weights, int words) {
  Floats even{}, odd{};
  for (int k = 0; k < words; ++k) {
    uint32_t pair;
    Words pairs;
    std::memcpy(&pair, inputs + k * sizeof(pair), sizeof(pair));
    std::memcpy(&pairs, weights + k * sizeof(pairs), sizeof(pairs));
    const float low = flushed(float_from_bits(pair << 16));
    const float high = flushed(float_from_bits(pair & 0xffff0000));
    for (int n = 0; n < kCount; ++n) {
      const float weight = flushed(float_from_bits(pairs[n] << 16));
      even[n] = flushed(__builtin_fmaf(low, weight, even[n]));
    }
    for (int n = 0; n < kCount; ++n) {
      const float weight = flushed(float_from_bits(pairs[n] & 0xffff0000));
      odd[n] = flushed(__builtin_fmaf(high, weight, odd[n]));
    }
  }
  for (int n = 0; n < kCount; ++n) sums[n] = flushed(flushed(sums[n]) + flushed(even[n] + odd[n]));
}

void add_tile_row_of_bytes(Ints& sums, const std::byte* inputs, const std::byte* weights,
                           int words) {
  for (int k = 0; k < words; ++k) {
    int8_t quad[4], quads[4 * kCount];
    std::memcpy(quad, inputs + k * sizeof(quad), sizeof(quad));
    std::memcpy(quads, weights + k * sizeof(quads), sizeof(quads));
    for (int n = 0; n < kCount; ++n) {
      for (int byte = 0; byte < 4; ++byte) sums[n] += quad[byte] * quads[4 * n + byte];
    }
  }
}

}  // namespace sinkstream::emulated_lanes
