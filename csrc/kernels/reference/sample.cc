#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <vector>

#include "kernels/reference/reference.h"

namespace sinkstream {

namespace {

// The logits that are not forbidden, largest first.
std::vector<float> allowed_descending(const float* logits, int64_t vocab) {
  std::vector<float> values;
  std::copy_if(logits, logits + vocab, std::back_inserter(values),
               [](float x) { return x != -INFINITY; });
  std::sort(values.begin(), values.end(), std::greater<>());
  return values;
}

// The smallest of `descending` that top-p keeps: the first at which the cumulative probability
// reaches p.
float top_p_threshold(const std::vector<float>& descending, double top_p) {
  double sum = 0;
  for (const float x : descending) sum += std::exp(double{x} - descending.front());
  double reached = 0;
  for (const float x : descending) {
    reached += std::exp(double{x} - descending.front());
    if (reached >= top_p * sum) return x;
  }
  return descending.back();
}

// See [Filters are thresholds].
float threshold_of(const SampleArgs& args, std::vector<float> descending) {
  if (args.top_k > 0 && args.top_k < static_cast<int64_t>(descending.size())) {
    const float kth = descending[args.top_k - 1];
    descending.erase(std::upper_bound(descending.begin(), descending.end(), kth, std::greater<>()),
                     descending.end());
  }
  double threshold = descending.back();
  if (args.top_p < 1) threshold = top_p_threshold(descending, args.top_p);
  threshold = std::max(threshold, descending.front() + std::log(args.min_p));
  while (descending.back() < threshold) descending.pop_back();
  return descending.back();
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
    const std::vector<float> descending = allowed_descending(args.logits, args.vocab);
    float threshold = INFINITY;
    if (descending.empty()) {
      *args.token = -1;
    } else if (args.greedy) {
      threshold = descending.front();
      *args.token = static_cast<int32_t>(std::max_element(args.logits, args.logits + args.vocab) -
                                         args.logits);
    } else {
      threshold = threshold_of(args, descending);
      *args.token = draw(args, threshold, descending.front());
    }
    if (args.threshold != nullptr) *args.threshold = threshold;
  });
}

}  // namespace sinkstream
