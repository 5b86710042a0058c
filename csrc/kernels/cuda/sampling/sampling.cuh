// The memory between logits.cu and sample.cu as kernels see it, and the order of logits in it.
#pragma once

#include <cfloat>

#include "kernels/cuda/portable.h"
#include "kernels/cuda/sampling/sampling.h"

namespace sinkstream::cuda {

constexpr int kSamplingThreads = 1024;
constexpr int kSamplingWarps = kSamplingThreads / kWarpSize;

// A key rises with its float, so that equal keys are equal logits. Denormals are zeros, and zeros
// have no sign, as the processor's kernels see them.
__device__ inline uint32_t key_of(float x) {
  const uint32_t bits = fabsf(x) < FLT_MIN ? 0u : __float_as_uint(x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of(uint32_t key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}
constexpr uint32_t kForbiddenKey = 0x007fffffu;  // of −infinity; every other key is above

// Note: [Weights are integers]. Truncated: the unit is small beside the exponential's own error.
__device__ inline uint64_t weight_of(float x, float largest) {
  return uint64_t(expf(x - largest) * 0x1p44f);
}
constexpr double kWeightUnit = 0x1p-44;

// What one block found in its slice.
struct Slice {
  uint64_t best;      // of those that are sampled from: key << 32 | ~id
  uint64_t raw_mass;  // Σ of the weights of the model's own logits, beside the slice's largest
  uint32_t raw_key;   // the largest of the model's own logits
  uint32_t is_finite;
};
static_assert(sizeof(Slice) == 24);

struct SamplingScratch {
  uint64_t* group_mass;  // [groups], of those tokens of a group that are kept
  uint64_t* masses;      // [kBuckets], of the histogram over the highest bits of the keys
  Slice* slices;         // [slices]
  uint32_t* counts;      // [kBuckets]
  uint32_t* ticket;      // blocks that have ended the first part of sample.cu
  uint32_t* group_keys;  // [groups], the largest of each group
  float* values;         // [groups][kGroup], filled up with −infinity
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
