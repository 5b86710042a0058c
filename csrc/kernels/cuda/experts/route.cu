#include "kernels/cuda/experts/route.h"

#include "kernels/cuda/portable.h"
#include "kernels/cuda/sum_splits.cuh"

namespace sinkstream::cuda {
namespace {

constexpr double kNever = -HUGE_VAL;
static_assert(kMostExperts <= kWarpSize * 32);  // a lane has a bit for each of its experts

__device__ inline double sum_of_warp(double x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kWarp, x, distance);
  return x;
}

__device__ inline double largest_of_warp(double x) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const double other = __shfl_xor_sync(kWarp, x, distance);
    x = other > x ? other : x;
  }
  return x;
}

// Calls body(i) for this lane's part of [0, count), then waits for the other lanes.
template <typename Body>
__device__ inline void for_each(int count, const Body& body) {
  for (int i = int(threadIdx.x); i < count; i += kWarpSize) body(i);
  __syncwarp();
}

__device__ inline void softmax(double* values, int count) {
  double largest = kNever, sum = 0;
  for_each(count, [&](int i) { largest = values[i] > largest ? values[i] : largest; });
  largest = largest_of_warp(largest);
  for_each(count, [&](int i) { sum += values[i] = exp(values[i] - largest); });
  sum = sum_of_warp(sum);
  for_each(count, [&](int i) { values[i] /= sum; });
}

// Calls take(r, index) in every lane, for the largest of `count` values in falling order, the lower
// index first where values are equal.
template <typename Take>
__device__ inline void take_largest(const double* values, int count, int taken, const Take& take) {
  uint32_t is_taken = 0;  // of this lane's values
  for (int r = 0; r < taken; ++r) {
    double best = kNever;
    int index = count;
    for (int i = int(threadIdx.x), bit = 0; i < count; i += kWarpSize, ++bit) {
      if ((is_taken >> bit & 1) != 0 || (index < count && !(values[i] > best))) continue;
      best = values[i];
      index = i;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      const double other = __shfl_xor_sync(kWarp, best, distance);
      const int other_index = __shfl_xor_sync(kWarp, index, distance);
      if (other > best || (other == best && other_index < index)) {
        best = other;
        index = other_index;
      }
    }
    if (index % kWarpSize == int(threadIdx.x)) is_taken |= 1u << index / kWarpSize;
    take(r, index);
  }
  __syncwarp();
}

// A row's choice. All arrays are in shared memory.
class Router {
 public:
  __device__ Router(const RouteArgs& args, double* scores, double* choice, double* ranks,
                    int* chosen)
      : args_(args),
        rules_(args.rules),
        scores_(scores),
        choice_(choice),
        ranks_(ranks),
        chosen_(chosen) {}

  __device__ void read_logits(int64_t row) {
    for_each(experts(), [&](int e) {
      float logit = sum_of_splits(args_.logits, row, e) + sum_of_splits(args_.rests, row, e);
      if (args_.bias != nullptr) logit += args_.bias[e];
      scores_[e] = logit;
    });
  }

  // Returns whether it could: no value is NaN.
  __device__ bool choose() {
    if (rules_.score == RouterScore::kSoftmax) softmax(scores_, experts());
    if (rules_.score == RouterScore::kSigmoid) {
      for_each(experts(), [&](int e) { scores_[e] = 1 / (1 + exp(-scores_[e])); });
    }
    bool has_nan = false;
    for_each(experts(), [&](int e) {
      const double bias = args_.choice_bias == nullptr ? 0 : args_.choice_bias[e];
      choice_[e] = scores_[e] + bias;
      has_nan |= choice_[e] != choice_[e];
    });
    if (__any_sync(kWarp, has_nan)) return false;
    keep_best_groups();
    take_largest(choice_, experts(), chosen(), [&](int r, int e) {
      if (threadIdx.x == 0) chosen_[r] = e;
    });
    return true;
  }

  __device__ void write(int64_t row) {
    double* const found = choice_;  // which is free by now
    if (rules_.score == RouterScore::kSparseMixer) {
      mix(found);
    } else {
      for_each(chosen(), [&](int r) { found[r] = scores_[chosen_[r]]; });
      if (rules_.score == RouterScore::kSoftmaxOfChosen) softmax(found, chosen());
    }
    double sum = 0;
    for_each(chosen(), [&](int r) { sum += found[r]; });
    sum = sum_of_warp(sum) + rules_.normalize_eps;
    for_each(chosen(), [&](int r) {
      double weight = rules_.normalize ? found[r] / sum : found[r];
      weight *= rules_.weight_scale;
      if (args_.expert_scale != nullptr) weight *= args_.expert_scale[chosen_[r]];
      args_.ids[row * chosen() + r] = chosen_[r];
      args_.weights[row * chosen() + r] = float(weight);
    });
  }

 private:
  __device__ int experts() const { return int(rules_.experts); }
  __device__ int chosen() const { return int(rules_.chosen); }

  // Takes the experts outside of the best groups out of the choice. Whether a group is among them
  // is in `chosen_` until that is needed.
  __device__ void keep_best_groups() {
    if (rules_.chosen_groups == rules_.groups) return;
    const int groups = int(rules_.groups), size = experts() / groups;
    const bool has_two = rules_.group_score == GroupScore::kSumOfTwo && size > 1;
    for_each(groups, [&](int group) {
      double first = kNever, second = kNever;
      for (int e = group * size; e < (group + 1) * size; ++e) {
        const double x = choice_[e];
        second = x > first ? first : x > second ? x : second;
        first = x > first ? x : first;
      }
      const double sum = has_two ? first + second : first;
      ranks_[group] = sum == sum ? sum : kNever;  // of two infinities
      chosen_[group] = 0;
    });
    take_largest(ranks_, groups, int(rules_.chosen_groups), [&](int, int group) {
      if (threadIdx.x == 0) chosen_[group] = 1;
    });
    for_each(experts(), [&](int e) {
      if (chosen_[e / size] == 0) choice_[e] = kNever;
    });
  }

  // Note: [SparseMixer] of kernels/route.h. A taken expert's score becomes NaN.
  __device__ void mix(double* found) {
    for (int r = 0; r < chosen(); ++r) {
      const double best = scores_[chosen_[r]];
      double sum = 0;
      for_each(experts(), [&](int e) {
        const double x = scores_[e], size = fabs(x) > best ? fabs(x) : best;
        if (x != x || (best - x) / size > 2 * double(rules_.jitter)) return;
        sum += exp(x - best);
      });
      sum = sum_of_warp(sum);
      if (threadIdx.x == 0) {
        found[r] = 1 / sum;
        scores_[chosen_[r]] = NAN;
      }
      __syncwarp();
    }
  }

  const RouteArgs& args_;
  const RouteRules& rules_;
  double *scores_, *choice_, *ranks_;  // [experts]
  int* chosen_;                        // [experts]
};

// A block of one warp takes a row.
__global__ void __launch_bounds__(kWarpSize) route_kernel(RouteArgs args) {
  SHARED(double, scores, [kMostExperts]);
  SHARED(double, choice, [kMostExperts]);
  SHARED(double, ranks, [kMostExperts]);
  SHARED(int, chosen, [kMostExperts]);
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const auto write_all = [&](bool is_idle) {  // in place of a choice
    for (int64_t r = threadIdx.x; r < args.rules.chosen; r += kWarpSize) {
      args.ids[row * args.rules.chosen + r] = is_idle ? -1 : int(r);
      args.weights[row * args.rules.chosen + r] = is_idle ? 0 : NAN;
    }
  };
  if (args.tokens[row].sequence < 0) return write_all(true);
  Router router(args, scores, choice, ranks, chosen);
  router.read_logits(row);
  if (!router.choose()) return write_all(false);
  router.write(row);
}

}  // namespace

Status route(const RouteArgs& args, Stream stream) {
  if (args.rows == 0) return kSuccess;
  return launch(route_kernel, dim3(unsigned(args.rows)), dim3(kWarpSize), 0, stream, args);
}

}  // namespace sinkstream::cuda
