// Device view of the scratch memory between logits.cu and sample.cu, and the order of logits.
#pragma once

#include <cfloat>

#include "kernels/cuda/portable.h"
#include "kernels/cuda/sampling/sampling.h"

namespace sinkstream::cuda {

constexpr int kSamplingThreads = 1024;
constexpr int kSamplingWarps = kSamplingThreads / kWarpSize;

__device__ inline float bent(float sum, const LogitBend& bend) {
  const float x = sum * bend.scale;
  return bend.soft_cap > 0 ? bend.soft_cap * tanhf(x / bend.soft_cap) : x;
}

// A key sorts like its float; equal keys are equal logits. Denormals count as zero and zeros have
// no sign, as in the CPU kernels.
__device__ inline uint32_t key_of(float x) {
  const uint32_t bits = fabsf(x) < FLT_MIN ? 0u : __float_as_uint(x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of(uint32_t key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}
constexpr uint32_t kForbiddenKey = 0x007fffffu;  // of −infinity; every other key is larger

// Note: [Weights are integers]. Truncated: the unit is small compared with the exponential's own
// error.
__device__ inline uint64_t weight_of(float x, float largest) {
  return uint64_t(expf(x - largest) * 0x1p44f);
}
constexpr double kWeightUnit = 0x1p-44;

// What one block found in its slice.
struct Slice {
  uint64_t best;      // of the logits to sample from: key << 32 | ~id
  uint64_t raw_mass;  // Σ weight of the model's own logits, relative to the slice's largest
  uint32_t raw_key;   // the largest of the model's own logits
  uint32_t is_finite;
};
static_assert(sizeof(Slice) == 24);

struct SamplingScratch {
  uint64_t* group_mass;  // [groups], of a group's kept tokens
  uint64_t* masses;      // [kBuckets], of the row's first histogram: sample.cu
  Slice* slices;         // [slices]
  uint32_t* counts;      // [kBuckets]
  uint32_t* ticket;      // blocks that have finished the first part of sample.cu
  uint32_t* group_keys;  // [groups], the largest of each group
  float* values;         // [groups][kGroup], padded with −infinity
};

__device__ inline SamplingScratch sampling_scratch(std::byte* scratch, int64_t vocab, int64_t row) {
  const SamplingLayout layout{vocab};
  std::byte* memory = scratch + row * layout.bytes();
  return {reinterpret_cast<uint64_t*>(memory + layout.group_mass_offset()),
          reinterpret_cast<uint64_t*>(memory + layout.masses_offset()),
          reinterpret_cast<Slice*>(memory + layout.slices_offset()),
          reinterpret_cast<uint32_t*>(memory + layout.counts_offset()),
          reinterpret_cast<uint32_t*>(memory + layout.ticket_offset()),
          reinterpret_cast<uint32_t*>(memory + layout.group_keys_offset()),
          reinterpret_cast<float*>(memory + layout.values_offset())};
}

template <typename T>
__device__ inline T max_of(T a, T b) {
  return a > b ? a : b;
}

template <typename T>
__device__ inline T warp_max(T x) {
  for (int lane = kWarpSize / 2; lane > 0; lane /= 2) {
    x = max_of(x, __shfl_xor_sync(kWarp, x, lane));
  }
  return x;
}

template <typename T>
__device__ inline T warp_sum(T x) {
  for (int lane = kWarpSize / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kWarp, x, lane);
  return x;
}

}  // namespace sinkstream::cuda
