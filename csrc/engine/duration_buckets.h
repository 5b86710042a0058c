// A histogram of durations with a few round bucket bounds: a plain value that an engine exports.
// For the quantiles of one run use Histogram, whose buckets are narrow.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace sinkstream {

struct DurationBuckets {
  // A duration belongs to the first bucket whose bound it does not exceed. The range covers
  // everything from a toy model's step to the first token after a very long prompt.
  static constexpr std::array<int64_t, 22> kBoundsNs = {
      10'000,         25'000,         50'000,         100'000,        250'000,       500'000,
      1'000'000,      2'500'000,      5'000'000,      10'000'000,     25'000'000,    50'000'000,
      100'000'000,    250'000'000,    500'000'000,    1'000'000'000,  2'500'000'000, 5'000'000'000,
      10'000'000'000, 25'000'000'000, 50'000'000'000, 100'000'000'000};

  void add(int64_t nanoseconds) {
    const auto bound = std::lower_bound(kBoundsNs.begin(), kBoundsNs.end(), nanoseconds);
    ++counts[static_cast<size_t>(bound - kBoundsNs.begin())];
    ++count;
    sum_ns += nanoseconds;
  }

  // The number of durations at or below the bound of `bucket`.
  int64_t cumulative(size_t bucket) const {
    int64_t sum = 0;
    for (size_t i = 0; i <= bucket; ++i) sum += counts[i];
    return sum;
  }

  std::array<int64_t, kBoundsNs.size() + 1> counts{};  // the last: above all bounds
  int64_t count = 0;                                   // the sum of `counts`
  int64_t sum_ns = 0;                                  // of all durations
};

}  // namespace sinkstream
