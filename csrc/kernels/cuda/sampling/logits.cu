#include "kernels/cuda/sampling/logits.h"

#include "kernels/cuda/sampling/penalties.cuh"
#include "kernels/cuda/sampling/sampling.cuh"
#include "kernels/cuda/sum_splits.cuh"

namespace sinkstream::cuda {

namespace {

constexpr int64_t kSlice = SamplingLayout::kSlice;
constexpr int kEach = int(kSlice / kSamplingThreads);  // tokens per thread
constexpr int kRounds = 2;                             // of a warp over one group
static_assert(kRounds * kWarpSize == SamplingLayout::kGroup && kEach % kRounds == 0);

__device__ inline float within_range(float x) { return fmaxf(fminf(x, FLT_MAX), -FLT_MAX); }

__device__ inline float penalized(float x, int32_t count, const SamplingRow& params) {
  x = within_range(x < 0 ? x * params.repetition_penalty : x / params.repetition_penalty);
  // A float product, rounded separately: the compiler cannot fuse it with the sum.
  const auto frequent = float(double{params.frequency_penalty} * float(count));
  return within_range(x - (params.presence_penalty + frequent));
}

// Maximum over the block. Each call needs its own `shared` [kSamplingWarps].
__device__ inline uint64_t block_max(uint64_t x, uint64_t* shared) {
  x = warp_max(x);
  if (threadIdx.x % kWarpSize == 0) shared[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  return warp_max(shared[threadIdx.x % kWarpSize]);
}

__device__ inline uint64_t block_sum(uint64_t x, uint64_t* shared) {
  x = warp_sum(x);
  if (threadIdx.x % kWarpSize == 0) shared[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  return warp_sum(shared[threadIdx.x % kWarpSize]);
}

// Applies bias and penalties to a slice, [kSlice] in shared memory. In each pass threads write
// different logits, because ids are unique in either list.
__device__ inline void apply_bias_and_penalties(const LogitsArgs& args, const SamplingRow& params,
                                                int64_t begin, float* slice) {
  const TokenBias* bias = args.bias + params.bias_begin;
  for (int i = threadIdx.x; i < params.bias_count; i += kSamplingThreads) {
    const uint64_t offset = uint64_t(bias[i].id - begin);
    if (offset >= uint64_t{kSlice} || bias[i].bias == -INFINITY) continue;
    slice[offset] = within_range(slice[offset] + bias[i].bias);
  }
  __syncthreads();
  if (params.penalties >= 0) {
    const PenaltyTable table = penalty_table(args.penalties, params.penalties);
    const int distinct = table.head->distinct;
    for (int i = threadIdx.x; i < distinct; i += kSamplingThreads) {
      const TokenCount entry = table.counts[i];
      const uint64_t offset = uint64_t(entry.id - begin);
      if (offset < uint64_t{kSlice}) slice[offset] = penalized(slice[offset], entry.count, params);
    }
    __syncthreads();
  }
  // Last, so that nothing brings a forbidden token back.
  for (int i = threadIdx.x; i < params.bias_count; i += kSamplingThreads) {
    const uint64_t offset = uint64_t(bias[i].id - begin);
    if (offset < uint64_t{kSlice} && bias[i].bias == -INFINITY) slice[offset] = -INFINITY;
  }
  __syncthreads();
}

// The model's logits of a thread's tokens; −infinity past the vocabulary. All loads of a split are
// issued before the first is used.
__device__ inline void load(const LogitsArgs& args, int64_t row, int64_t first, float (&x)[kEach]) {
  const Partials& logits = args.logits;
  for (int split = 0; split < logits.splits; ++split) {
    const float* from = logits.data + (split * logits.rows + row) * logits.stride;
    float more[kEach];
    for (int i = 0; i < kEach; ++i) {
      const int64_t id = first + i * kWarpSize;
      more[i] = id < args.vocab ? from[id] : -INFINITY;
    }
    for (int i = 0; i < kEach; ++i) x[i] = split == 0 ? more[i] : x[i] + more[i];
  }
  for (int i = 0; i < kEach; ++i) {
    if (first + i * kWarpSize < args.vocab) x[i] = bent(x[i], args.bend);
  }
}

// A block handles one slice of one row, a warp handles complete groups: token i of a thread is the
// one at its lane in round i of the warp.
__global__ void __launch_bounds__(kSamplingThreads) logits_kernel(LogitsArgs args) {
  SHARED(float, slice, [kSlice]);
  SHARED(uint64_t, raw_keys, [kSamplingWarps]);
  SHARED(uint64_t, masses, [kSamplingWarps]);
  SHARED(uint64_t, bests, [kSamplingWarps]);
  wait_for_previous();
  const int64_t row = blockIdx.y;
  if (args.tokens[row].sequence < 0) return;
  const SamplingRow params = args.params[row];
  if (params.wave != args.wave) return;
  const SamplingScratch scratch = sampling_scratch(args.scratch, args.vocab, row);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int64_t begin = blockIdx.x * kSlice;
  const int own = warp * kEach * kWarpSize + lane;  // of the slice: the thread's first token

  float x[kEach];
  uint64_t raw = 0;  // the largest key; bit 32: some number is not finite
  load(args, row, begin + own, x);
  for (int i = 0; i < kEach; ++i) {
    if (begin + own + i * kWarpSize >= args.vocab) continue;
    const uint32_t key = key_of(x[i]);
    const uint64_t bad = fabsf(x[i]) <= FLT_MAX ? 0 : 1;  // NaN is not
    raw = max_of(raw, bad << 32 | key);
  }
  raw = block_max(raw, raw_keys);
  const auto raw_key = uint32_t(raw);
  const bool is_finite = raw >> 32 == 0;
  uint64_t raw_mass = 0;
  if (is_finite) {
    const float largest = value_of(raw_key);
    for (int i = 0; i < kEach; ++i) raw_mass += weight_of(x[i], largest);
  }
  raw_mass = block_sum(raw_mass, masses);

  if (params.bias_count > 0 || params.penalties >= 0) {
    for (int i = 0; i < kEach; ++i) slice[own + i * kWarpSize] = x[i];
    __syncthreads();
    apply_bias_and_penalties(args, params, begin, slice);
    for (int i = 0; i < kEach; ++i) x[i] = slice[own + i * kWarpSize];
  }

  uint64_t best = 0;
  for (int i = 0; i < kEach; i += kRounds) {
    uint32_t group_key = 0;
    for (int round = i; round < i + kRounds; ++round) {
      const int64_t id = begin + own + round * kWarpSize;
      if (x[round] != -INFINITY) x[round] = within_range(x[round] / params.temperature);
      const uint32_t key = key_of(x[round]);
      const uint64_t candidate = uint64_t{key} << 32 | uint32_t(~uint32_t(id));
      best = max_of(best, candidate);
      group_key = max_of(group_key, key);
    }
    group_key = warp_max(group_key);
    const int64_t group = (begin + own + i * kWarpSize) / SamplingLayout::kGroup;
    if (group * SamplingLayout::kGroup >= args.vocab) continue;  // uniform across the warp
    for (int round = i; round < i + kRounds; ++round) {
      scratch.values[begin + own + round * kWarpSize] = x[round];
    }
    if (lane == 0) scratch.group_keys[group] = group_key;
  }
  best = block_max(best, bests);
  if (threadIdx.x == 0) scratch.slices[blockIdx.x] = {best, raw_mass, raw_key, is_finite};

  // Clears the histogram for sample.cu.
  const int stride = int(gridDim.x) * kSamplingThreads;
  for (int b = int(blockIdx.x) * kSamplingThreads + threadIdx.x; b < SamplingLayout::kBuckets;
       b += stride) {
    scratch.masses[b] = 0;
    scratch.counts[b] = 0;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *scratch.ticket = 0;
}

}  // namespace

Status logits(const LogitsArgs& args, Stream stream) {
  const dim3 grid(unsigned(SamplingLayout{args.vocab}.slices()), unsigned(args.rows));
  return launch(logits_kernel, grid, dim3(kSamplingThreads), 0, stream, args);
}

}  // namespace sinkstream::cuda
