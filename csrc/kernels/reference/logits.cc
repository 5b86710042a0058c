#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/reference.h"

namespace sinkstream {

namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

float within_range(float x) { return std::clamp(x, -kLargest, kLargest); }

bool all_finite(const float* x, int64_t count) {
  return std::all_of(x, x + count, [](float value) { return std::isfinite(value); });
}

double log_sum_exp(const float* x, int64_t count) {
  const double largest = *std::max_element(x, x + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

float penalized(float x, int32_t count, const LogitsArgs& args) {
  x = within_range(x < 0 ? x * args.repetition_penalty : x / args.repetition_penalty);
  const float occurrences = static_cast<float>(count);
  return within_range(x - (args.presence_penalty + args.frequency_penalty * occurrences));
}

}  // namespace

void reference::logits(const LogitsArgs& args, const Launch& launch) {
  launch.pool->run(1, [&](int64_t, int) {
    *args.is_finite = all_finite(args.input, args.vocab);
    if (!*args.is_finite) return;
    if (args.log_sum_exp != nullptr) *args.log_sum_exp = log_sum_exp(args.input, args.vocab);
    if (args.out == nullptr) return;

    float* out = args.out;
    if (out != args.input) std::copy_n(args.input, args.vocab, out);
    for (int64_t i = 0; i < args.bias_count; ++i) {
      const auto [id, bias] = args.bias[i];
      if (bias != -INFINITY) out[id] = within_range(out[id] + bias);
    }
    for (int64_t i = 0; i < args.count_count; ++i) {
      const auto [id, count] = args.counts[i];
      out[id] = penalized(out[id], count, args);
    }
    for (int64_t i = 0; i < args.vocab; ++i) out[i] = within_range(out[i] / args.temperature);
    for (int64_t i = 0; i < args.bias_count; ++i) {
      if (args.bias[i].bias == -INFINITY) out[args.bias[i].id] = -INFINITY;
    }
  });
}

}  // namespace sinkstream
