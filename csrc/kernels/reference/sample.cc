#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <vector>

#include "kernels/reference/reference.h"

namespace sinkstream {

namespace {

// Not forbidden, likeliest first.
std::vector<float> allowed_falling(const float* logits, int64_t vocab) {
  std::vector<float> values;
  std::copy_if(logits, logits + vocab, std::back_inserter(values),
               [](float x) { return x != -INFINITY; });
  std::sort(values.begin(), values.end(), std::greater<>());
  return values;
}

// The smallest of `falling` that top-p keeps: the rest, from there up, reach p for the first time.
float top_p_threshold(const std::vector<float>& falling, double top_p) {
  double sum = 0;
  for (const float x : falling) sum += std::exp(double{x} - falling.front());
  double reached = 0;
  for (const float x : falling) {
    reached += std::exp(double{x} - falling.front());
    if (reached >= top_p * sum) return x;
  }
  return falling.back();
}

// See [Filters are thresholds].
float threshold_of(const SampleArgs& args, std::vector<float> falling) {
  if (args.top_k > 0 && args.top_k < static_cast<int64_t>(falling.size())) {
    const float kth = falling[args.top_k - 1];
    falling.erase(std::upper_bound(falling.begin(), falling.end(), kth, std::greater<>()),
                  falling.end());
  }
  double threshold = falling.back();
  if (args.top_p < 1) threshold = top_p_threshold(falling, args.top_p);
  threshold = std::max(threshold, falling.front() + std::log(args.min_p));
  while (falling.back() < threshold) falling.pop_back();
  return falling.back();
}

int32_t draw(const SampleArgs& args, float threshold, float largest) {
  double sum = 0;
  for (int64_t i = 0; i < args.vocab; ++i) {
    if (args.logits[i] >= threshold) sum += std::exp(double{args.logits[i]} - largest);
  }
  double reached = 0;
  int64_t last = -1;
  for (int64_t i = 0; i < args.vocab; ++i) {
    if (!(args.logits[i] >= threshold)) continue;
    const double weight = std::exp(double{args.logits[i]} - largest);
    if (weight == 0) continue;
    last = i;
    reached += weight;
    if (reached > args.uniform * sum) break;
  }
  return static_cast<int32_t>(last);
}

}  // namespace

void reference::sample(const SampleArgs& args, const Launch& launch) {
  launch.pool->run(1, [&](int64_t, int) {
    const std::vector<float> falling = allowed_falling(args.logits, args.vocab);
    float threshold = INFINITY;
    if (falling.empty()) {
      *args.token = -1;
    } else if (args.greedy) {
      threshold = falling.front();
      *args.token = static_cast<int32_t>(std::max_element(args.logits, args.logits + args.vocab) -
                                         args.logits);
    } else {
      threshold = threshold_of(args, falling);
      *args.token = draw(args, threshold, falling.front());
    }
    if (args.threshold != nullptr) *args.threshold = threshold;
  });
}

}  // namespace sinkstream
