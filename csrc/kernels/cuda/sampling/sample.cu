#include "kernels/cuda/sampling/sample.h"

#include <algorithm>

#include "common/philox.h"
#include "kernels/cuda/sampling/penalties.cuh"
#include "kernels/cuda/sampling/sampling.cuh"
#include "kernels/cuda/sum_splits.cuh"

namespace sinkstream::cuda {

namespace {

constexpr int kGroup = int(SamplingLayout::kGroup);
constexpr int kBuckets = int(SamplingLayout::kBuckets);
constexpr int kGroupsOfSlice = int(SamplingLayout::kSlice) / kGroup;
constexpr int kOwnBuckets = kBuckets / kSamplingThreads;
constexpr int kListed = 2048;  // candidates that are kept in shared memory

// Note: [Finding a threshold]
// A first histogram has a bucket for each 1/64 that a logit is below the row's largest, and a last
// one for all that are further away and weigh nothing. Logits spread over hundreds of these
// buckets, so threads seldom add to the same one. The threshold's bucket has the keys of a short
// interval, which histograms of up to 11 bits of a key narrow down to one. Once few keys are left
// they are listed in shared memory, and the row is not read again.
constexpr float kBucketsPerUnit = 64;
constexpr int kFarBucket = kBuckets - 1;
constexpr int kDigitBits = 11;
static_assert(1 << kDigitBits == kBuckets);
static_assert(kFarBucket / kBucketsPerUnit > 30.5);  // Note: [Weights are integers] of sampling.h

// A histogram in shared memory. Bucket 0 is that of the largest keys.
struct Histogram {
  uint32_t* counts;      // [kBuckets]
  uint32_t* mass_lows;   // [kBuckets]: 64-bit masses in two words, because shared memory
  uint32_t* mass_highs;  // has only 32-bit atomic additions
};

// Number and mass of the keys in some buckets.
struct CountAndMass {
  uint64_t count;
  uint64_t mass;
};

// What the block knows about a row, the same in every thread.
struct Row {
  SamplingScratch scratch;
  int groups;
  float largest;
};

// Rises as the key falls.
__device__ inline int bucket_of_key(uint32_t key, float largest) {
  const float buckets = (largest - value_of(key)) * kBucketsPerUnit;
  return buckets < kFarBucket ? int(buckets) : kFarBucket;
}

struct KeyRange {
  uint32_t lowest;
  uint32_t highest;
};

// An interval with all keys of a bucket, and perhaps some of its neighbours'. Its bounds are a
// difference of floats, rounded, which no key of the bucket can pass.
__device__ inline KeyRange keys_of_bucket(int bucket, float largest) {
  const auto key_at = [largest](int buckets) {
    return key_of(largest - float(buckets) / kBucketsPerUnit);
  };
  return {bucket == kFarBucket ? kForbiddenKey + 1 : key_at(bucket + 1),
          bucket == 0 ? key_of(largest) : key_at(bucket - 1)};
}

struct SharedMemory {
  Histogram histogram;
  uint32_t* listed;         // [kListed], keys
  uint32_t* listed_count;   // one
  CountAndMass* warp_sums;  // [kSamplingWarps]
  CountAndMass* above;      // one
  uint64_t* found;          // one
};

__device__ inline bool is_first_thread() { return threadIdx.x == 0; }

__device__ inline uint64_t warp_prefix_sum(uint64_t x) {
  const int lane = threadIdx.x % kWarpSize;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const uint64_t other = __shfl_sync(kWarp, x, lane >= distance ? lane - distance : lane);
    if (lane >= distance) x += other;
  }
  return x;
}

// The sum over all threads before this one; over all threads in `total`.
__device__ inline CountAndMass sum_before(CountAndMass own, CountAndMass& total,
                                          CountAndMass* warp_sums) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const CountAndMass up_to = {warp_prefix_sum(own.count), warp_prefix_sum(own.mass)};
  __syncthreads();  // the last call's sums have been read
  if (lane == kWarpSize - 1) warp_sums[warp] = up_to;
  __syncthreads();
  if (warp == 0) {
    const CountAndMass sum = warp_sums[lane];
    const CountAndMass warps = {warp_prefix_sum(sum.count), warp_prefix_sum(sum.mass)};
    warp_sums[lane] = warps;
  }
  __syncthreads();
  total = warp_sums[kSamplingWarps - 1];
  const CountAndMass none = {0, 0}, before = warp > 0 ? warp_sums[warp - 1] : none;
  return {before.count + up_to.count - own.count, before.mass + up_to.mass - own.mass};
}

__device__ inline void clear(const Histogram& histogram) {
  for (int b = threadIdx.x; b < kBuckets; b += kSamplingThreads) {
    histogram.counts[b] = histogram.mass_lows[b] = histogram.mass_highs[b] = 0;
  }
  __syncthreads();
}

__device__ inline void add(const Histogram& histogram, int bucket, uint64_t mass) {
  atomicAdd(&histogram.counts[bucket], 1u);
  if (mass == 0) return;
  const auto low = uint32_t(mass);
  const uint32_t before = atomicAdd(&histogram.mass_lows[bucket], low);
  const uint32_t high = uint32_t(mass >> 32) + (before + low < before ? 1 : 0);  // the carry
  if (high != 0) atomicAdd(&histogram.mass_highs[bucket], high);
}

__device__ inline CountAndMass bucket_of(const Histogram& histogram, int b) {
  return {histogram.counts[b], uint64_t{histogram.mass_highs[b]} << 32 | histogram.mass_lows[b]};
}

// Calls body(group, x), in all lanes of a warp, for each group in [first, last) with a key of at
// least `lowest`; x[i] is the lane's logit in round i. Other groups are not read: one lane calls
// skip(group).
template <typename Body, typename Skip>
__device__ inline void visit_groups(const Row& row, int first, int last, uint32_t lowest,
                                    const Body& body, const Skip& skip) {
  constexpr int kRounds = kGroup / kWarpSize;
  constexpr int kAtOnce = 4;  // groups whose loads are issued together
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  for (int base = first + warp * kWarpSize; base < last; base += kSamplingThreads) {
    const int own = base + lane;
    const bool has_any = own < last && row.scratch.group_keys[own] >= lowest;
    if (own < last && !has_any) skip(own);
    unsigned left = __ballot_sync(kWarp, has_any);
    while (left != 0) {
      int groups[kAtOnce];
      float x[kAtOnce][kRounds];
      for (int k = 0; k < kAtOnce; ++k) {
        groups[k] = left != 0 ? base + __ffs(int(left)) - 1 : -1;
        left &= left - 1;  // 0 stays 0
        if (groups[k] < 0) continue;
        const float* group = row.scratch.values + int64_t{groups[k]} * kGroup;
        for (int i = 0; i < kRounds; ++i) x[k][i] = group[i * kWarpSize + lane];
      }
      for (int k = 0; k < kAtOnce; ++k) {
        if (groups[k] >= 0) body(groups[k], x[k]);
      }
    }
  }
}

// Adds this block's slice to the row's first histogram.
__device__ inline void add_slice(const Row& row, const SharedMemory& shared) {
  clear(shared.histogram);
  const int first = int(blockIdx.x) * kGroupsOfSlice;
  const int last = std::min(first + kGroupsOfSlice, row.groups);
  uint32_t far = 0;  // of the warp's keys
  const auto add_group = [&](int, const float(&x)[kGroup / kWarpSize]) {
    for (const float value : x) {
      const uint32_t key = key_of(value);
      const bool is_allowed = key != kForbiddenKey;
      const int bucket = bucket_of_key(key, row.largest);
      far += __popc(__ballot_sync(kWarp, is_allowed && bucket == kFarBucket));
      if (is_allowed && bucket != kFarBucket) {
        add(shared.histogram, bucket, weight_of(value, row.largest));
      }
    }
  };
  visit_groups(row, first, last, kForbiddenKey + 1, add_group, [](int) {});
  if (threadIdx.x % kWarpSize == 0 && far > 0) {
    atomicAdd(&shared.histogram.counts[kFarBucket], far);
  }
  __syncthreads();
  for (int b = threadIdx.x; b < kBuckets; b += kSamplingThreads) {
    const CountAndMass bucket = bucket_of(shared.histogram, b);
    if (bucket.count == 0) continue;
    atomicAdd(&row.scratch.counts[b], uint32_t(bucket.count));
    if (bucket.mass > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&row.scratch.masses[b]),
                static_cast<unsigned long long>(bucket.mass));
    }
  }
}

__device__ inline void load_first_histogram(const Row& row, const SharedMemory& shared) {
  for (int b = threadIdx.x; b < kBuckets; b += kSamplingThreads) {
    const uint64_t mass = row.scratch.masses[b];
    shared.histogram.counts[b] = row.scratch.counts[b];
    shared.histogram.mass_lows[b] = uint32_t(mass);
    shared.histogram.mass_highs[b] = uint32_t(mass >> 32);
  }
  __syncthreads();
}

__device__ inline CountAndMass total_of(const Histogram& histogram, const SharedMemory& shared) {
  CountAndMass own = {0, 0}, total;
  for (int i = 0; i < kOwnBuckets; ++i) {
    const CountAndMass bucket = bucket_of(histogram, threadIdx.x * kOwnBuckets + i);
    own = {own.count + bucket.count, own.mass + bucket.mass};
  }
  sum_before(own, total, shared.warp_sums);
  return total;
}

enum class By { kCount, kMass };

__device__ inline uint64_t amount(const CountAndMass& x, By by) {
  return by == By::kCount ? x.count : x.mass;
}

// The first bucket that reaches `target`, which is at most the total. Adds everything before it to
// `above`.
__device__ inline int find_bucket(By by, uint64_t target, CountAndMass& above,
                                  const SharedMemory& shared) {
  CountAndMass own[kOwnBuckets], sum = {0, 0}, total;
  for (int i = 0; i < kOwnBuckets; ++i) {
    own[i] = bucket_of(shared.histogram, threadIdx.x * kOwnBuckets + i);
    sum = {sum.count + own[i].count, sum.mass + own[i].mass};
  }
  CountAndMass before = sum_before(sum, total, shared.warp_sums);
  before = {before.count + above.count, before.mass + above.mass};
  for (int i = 0; i < kOwnBuckets; ++i) {
    const CountAndMass with = {before.count + own[i].count, before.mass + own[i].mass};
    if (amount(before, by) < target && target <= amount(with, by)) {  // true in one thread, once
      *shared.found = uint64_t(threadIdx.x * kOwnBuckets + i);
      *shared.above = before;
    }
    before = with;
  }
  __syncthreads();
  above = *shared.above;
  return int(*shared.found);
}

// The keys that may be the threshold: those of a bucket of the first histogram, as far as they are
// in [lowest, lowest + 2^bits).
struct Candidates {
  int bucket;
  uint32_t lowest;
  int bits;

  __device__ bool is_in_range(uint32_t key) const {
    return key >= lowest && uint64_t{key - lowest} >> bits == 0;
  }
};

// Calls body(key) for each candidate.
template <typename Body>
__device__ inline void for_each_candidate(const Row& row, const SharedMemory& shared,
                                          bool is_listed, const Candidates& candidates,
                                          const Body& body) {
  if (is_listed) {
    for (uint32_t i = threadIdx.x; i < *shared.listed_count; i += kSamplingThreads) {
      if (candidates.is_in_range(shared.listed[i])) body(shared.listed[i]);
    }
    return;
  }
  const auto look = [&](int, const float(&x)[kGroup / kWarpSize]) {
    for (const float value : x) {
      const uint32_t key = key_of(value);
      if (candidates.is_in_range(key) && key != kForbiddenKey &&
          bucket_of_key(key, row.largest) == candidates.bucket) {
        body(key);
      }
    }
  };
  visit_groups(row, 0, row.groups, candidates.lowest, look, [](int) {});
}

struct Threshold {
  uint32_t key;
  uint64_t mass;  // of all tokens with this key or a larger one
};

// The largest key such that it and larger keys amount to `target`, which is above 0 and at most the
// row's total: Note [Finding a threshold].
__device__ inline Threshold select(const Row& row, By by, uint64_t target,
                                   const SharedMemory& shared) {
  CountAndMass above = {0, 0};
  load_first_histogram(row, shared);
  const int bucket = find_bucket(by, target, above, shared);
  CountAndMass found = bucket_of(shared.histogram, bucket);
  const KeyRange range = keys_of_bucket(bucket, row.largest);
  Candidates candidates = {bucket, range.lowest, 32 - __clz(int(range.highest - range.lowest))};
  bool is_listed = false;
  __syncthreads();  // the histogram has been read
  while (candidates.bits > 0) {
    if (!is_listed && found.count <= kListed) {
      if (is_first_thread()) *shared.listed_count = 0;
      __syncthreads();
      for_each_candidate(row, shared, false, candidates, [&](uint32_t key) {
        shared.listed[atomicAdd(shared.listed_count, 1u)] = key;
      });
      is_listed = true;
    }
    clear(shared.histogram);
    const int shift = candidates.bits > kDigitBits ? candidates.bits - kDigitBits : 0;
    const uint32_t largest_digit = (1u << (candidates.bits - shift)) - 1;
    for_each_candidate(row, shared, is_listed, candidates, [&](uint32_t key) {
      add(shared.histogram, int(largest_digit - ((key - candidates.lowest) >> shift)),
          weight_of(value_of(key), row.largest));
    });
    __syncthreads();
    const int b = find_bucket(by, target, above, shared);
    found = bucket_of(shared.histogram, b);
    candidates.lowest += (largest_digit - uint32_t(b)) << shift;
    candidates.bits = shift;
    __syncthreads();  // the histogram has been read
  }
  return {candidates.lowest, above.mass + found.mass};
}

// An integer near fraction · mass: `fraction` in [0, 1].
__device__ inline uint64_t part_of(uint64_t mass, double fraction) {
  return uint64_t(ceil(fraction * double(mass)));
}

// The key of the smallest logit that top-k and top-p keep.
__device__ inline uint32_t select_threshold(const Row& row, const SamplingRow& params,
                                            const SharedMemory& shared) {
  load_first_histogram(row, shared);
  const CountAndMass total = total_of(shared.histogram, shared);
  Threshold threshold = {kForbiddenKey + 1, total.mass};
  if (params.top_k > 0 && uint64_t(params.top_k) < total.count) {
    threshold = select(row, By::kCount, uint64_t(params.top_k), shared);
  }
  if (params.top_p < 1) {
    uint64_t target = part_of(threshold.mass, params.top_p);
    target = target < 1 ? 1 : target > threshold.mass ? threshold.mass : target;
    const Threshold top_p = select(row, By::kMass, target, shared);
    if (top_p.key > threshold.key) threshold = top_p;
  }
  return threshold.key;
}

// The key of the smallest float with at least min-p of the largest one's probability.
__device__ inline uint32_t min_p_threshold(float largest, double log_min_p) {
  const double least = largest + log_min_p;
  if (!(least >= -FLT_MAX)) return kForbiddenKey + 1;
  const auto rounded_least = float(least);
  return key_of(rounded_least < least ? nextafterf(rounded_least, INFINITY) : rounded_least);
}

// Stores, for each group in [first, last), the mass of its tokens from key `lowest` up.
__device__ inline void weigh_groups(const Row& row, int first, int last, uint32_t lowest) {
  const auto weigh = [&](int group, const float(&x)[kGroup / kWarpSize]) {
    uint64_t mass = 0;
    for (const float value : x) {
      if (key_of(value) >= lowest) mass += weight_of(value, row.largest);
    }
    mass = warp_sum(mass);
    if (threadIdx.x % kWarpSize == 0) row.scratch.group_mass[group] = mass;
  };
  visit_groups(row, first, last, lowest, weigh,
               [&](int group) { row.scratch.group_mass[group] = 0; });
}

// The first token from key `lowest` up, by ascending id, at which the running mass exceeds
// `uniform` of the total. The groups' masses are known.
__device__ inline int32_t draw(const Row& row, uint32_t lowest, double uniform,
                               const SharedMemory& shared) {
  const uint64_t* group_mass = row.scratch.group_mass;
  const int each = (row.groups + kSamplingThreads - 1) / kSamplingThreads;
  const int begin = threadIdx.x * each, end = std::min(begin + each, row.groups);
  CountAndMass own = {0, 0}, total;
  for (int g = begin; g < end; ++g) own.mass += group_mass[g];
  uint64_t before = sum_before(own, total, shared.warp_sums).mass;
  uint64_t target = uint64_t(uniform * double(total.mass));
  if (target >= total.mass) target = total.mass - 1;  // the product may have been rounded up

  if (before <= target && target < before + own.mass) {  // true in one thread
    int g = begin;
    while (before + group_mass[g] <= target) before += group_mass[g++];
    *shared.found = uint64_t(g);
    shared.above->mass = before;
  }
  __syncthreads();
  const int64_t group = int64_t(*shared.found);
  uint64_t up_to = shared.above->mass;
  const int lane = threadIdx.x % kWarpSize;
  for (int i = 0; i < kGroup / kWarpSize; ++i) {  // every warp finds the same
    const float value = row.scratch.values[group * kGroup + i * kWarpSize + lane];
    const uint64_t mass = key_of(value) >= lowest ? weight_of(value, row.largest) : 0;
    const uint64_t reached = up_to + warp_prefix_sum(mass);
    const unsigned beyond = __ballot_sync(kWarp, reached > target);
    if (beyond != 0) return int32_t(group * kGroup + i * kWarpSize + __ffs(int(beyond)) - 1);
    up_to = __shfl_sync(kWarp, reached, kWarpSize - 1);
  }
  return -1;  // unreachable: the group's mass is that of these tokens
}

// The combined results of a row's slices.
struct Maxima {
  uint64_t best;
  uint32_t raw_key;
  uint32_t is_finite;
};

// Called by all lanes of a warp.
__device__ inline Maxima maxima_of(const SamplingScratch& scratch, int slices) {
  Maxima maxima = {0, 0, 1};
  for (int s = threadIdx.x % kWarpSize; s < slices; s += kWarpSize) {
    const Slice slice = scratch.slices[s];
    maxima.best = max_of(maxima.best, slice.best);
    maxima.raw_key = max_of(maxima.raw_key, slice.raw_key);
    maxima.is_finite &= slice.is_finite;
  }
  return {warp_max(maxima.best), warp_max(maxima.raw_key),
          uint32_t(__all_sync(kWarp, maxima.is_finite != 0))};
}

// Called by all lanes of a warp; slices are added in one order.
__device__ inline double log_sum_exp(const SamplingScratch& scratch, int slices, float largest) {
  double sum = 0;
  for (int s = threadIdx.x % kWarpSize; s < slices; s += kWarpSize) {
    const Slice slice = scratch.slices[s];
    sum += double(slice.raw_mass) * kWeightUnit * exp(double{value_of(slice.raw_key)} - largest);
  }
  return largest + log(warp_sum(sum));
}

// Writes the row's result. Called by the first warp.
__device__ inline void write_result(const SampleArgs& args, const SamplingRow& params, int64_t row,
                                    const Maxima& maxima, int32_t token, uint32_t threshold) {
  const int slices = int(SamplingLayout{args.vocab}.slices());
  const SamplingScratch scratch = sampling_scratch(args.scratch, args.vocab, row);
  const double total = log_sum_exp(scratch, slices, value_of(maxima.raw_key));
  if (!is_first_thread()) return;
  SampledRow sampled = {.log_sum_exp = total,
                        .logprob = 0,
                        .token = token,
                        .is_finite = int32_t(maxima.is_finite),
                        .unused = 0};
  if (token >= 0) {
    sampled.logprob = float(bent(sum_of_splits(args.logits, row, token), args.bend) - total);
  }
  args.sampled[row] = sampled;
  args.ids[params.seat] = token >= 0 ? token : 0;
  if (args.thresholds != nullptr) {
    args.thresholds[row] = token >= 0 ? value_of(threshold) : INFINITY;
  }
  if (token >= 0 && params.penalties >= 0) {
    append_token(penalty_table(args.penalties, params.penalties), token);
  }
}

// Whether all other blocks of the row have finished, so that their results can be read.
__device__ inline bool is_last_block(const SamplingScratch& scratch, uint64_t* shared) {
  __syncthreads();
  if (is_first_thread()) {
    __threadfence();
    *shared = atomicAdd(scratch.ticket, 1u) == gridDim.x - 1 ? 1 : 0;
    __threadfence();
  }
  __syncthreads();
  const bool is_last = *shared != 0;
  __syncthreads();
  return is_last;
}

__global__ void __launch_bounds__(kSamplingThreads) sample_kernel(SampleArgs args) {
  SHARED(uint32_t, histogram, [3][kBuckets]);
  SHARED(uint32_t, listed, [kListed]);
  SHARED(uint32_t, listed_count, [1]);
  SHARED(CountAndMass, warp_sums, [kSamplingWarps]);
  SHARED(CountAndMass, above, [1]);
  SHARED(uint64_t, found, [1]);
  SHARED(Maxima, maxima_of_row, [1]);
  wait_for_previous();
  const int64_t r = blockIdx.y;
  const TokenRow token_row = args.tokens[r];
  if (token_row.sequence < 0) return;
  const SamplingRow params = args.params[r];
  if (params.wave != args.wave) return;
  if (params.draft >= 0) {  // one thread reads the host's memory for its block
    if (is_first_thread()) found[0] = args.sampled[r - 1].token == params.draft ? 1 : 0;
    __syncthreads();
    if (found[0] == 0) {
      if (blockIdx.x == 0 && is_first_thread()) args.sampled[r].token = kSkipped;
      return;
    }
  }
  const SamplingLayout layout{args.vocab};
  const SamplingScratch scratch = sampling_scratch(args.scratch, args.vocab, r);
  const SharedMemory shared = {
      {histogram[0], histogram[1], histogram[2]}, listed, listed_count, warp_sums, above, found};

  if (threadIdx.x < kWarpSize) {
    const Maxima found_maxima = maxima_of(scratch, int(layout.slices()));
    if (is_first_thread()) maxima_of_row[0] = found_maxima;
  }
  __syncthreads();
  const Maxima maxima = maxima_of_row[0];
  const auto largest_key = uint32_t(maxima.best >> 32);
  const bool has_none = maxima.is_finite == 0 || largest_key == kForbiddenKey;
  if (has_none || params.greedy != 0) {
    const int32_t token = has_none ? -1 : int32_t(~uint32_t(maxima.best));
    if (blockIdx.x == 0 && threadIdx.x < kWarpSize) {
      write_result(args, params, r, maxima, token, largest_key);
    }
    return;
  }

  const Row row = {scratch, int(layout.groups()), value_of(largest_key)};
  const bool selects = params.top_k > 0 || params.top_p < 1;
  uint32_t lowest = min_p_threshold(row.largest, params.log_min_p);
  if (selects) {
    add_slice(row, shared);
  } else {
    const int first = int(blockIdx.x) * kGroupsOfSlice;
    weigh_groups(row, first, std::min(first + kGroupsOfSlice, row.groups), lowest);
  }
  if (!is_last_block(scratch, found)) return;

  if (selects) {
    const uint32_t selected = select_threshold(row, params, shared);
    lowest = max_of(lowest, selected);
    weigh_groups(row, 0, row.groups, lowest);
    __syncthreads();
  }
  const double at = uniform(params.seed, uint64_t(token_row.index) + 1);
  const int32_t token = draw(row, lowest, at, shared);
  if (threadIdx.x < kWarpSize) write_result(args, params, r, maxima, token, lowest);
}

}  // namespace

Status sample(const SampleArgs& args, Stream stream) {
  const dim3 grid(unsigned(SamplingLayout{args.vocab}.slices()), unsigned(args.rows));
  return launch(sample_kernel, grid, dim3(kSamplingThreads), 0, stream, args);
}

}  // namespace sinkstream::cuda
