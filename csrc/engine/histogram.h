// Durations in a fixed number of buckets, 16 per power of two: quantiles are accurate to 3 %.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>

namespace sinkstream {

// One thread records, any thread reads.
class Histogram {
 public:
  void record(int64_t nanoseconds) {
    std::atomic<uint32_t>& count = counts_[bucket_of(nanoseconds)];
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  uint64_t count() const {
    uint64_t sum = 0;
    for (const auto& count : counts_) sum += count.load(std::memory_order_relaxed);
    return sum;
  }

  // The `q` quantile in seconds, q in [0, 1]; 0 if nothing was recorded.
  double quantile_s(double q) const {
    const double rank = std::ceil(q * static_cast<double>(count()));
    uint64_t seen = 0;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      seen += counts_[bucket].load(std::memory_order_relaxed);
      if (seen > 0 && static_cast<double>(seen) >= rank) return middle_ns(bucket) * 1e-9;
    }
    return 0;
  }

 private:
  static constexpr int kFirstBit = 10;  // durations below a microsecond share one bucket
  static constexpr int kLastBit = 42;   // and those above an hour another
  static constexpr int kBuckets = (kLastBit - kFirstBit) * 16 + 1;

  static int bucket_of(int64_t nanoseconds) {
    if (nanoseconds < int64_t{1} << kFirstBit) return 0;
    if (nanoseconds >= int64_t{1} << kLastBit) return kBuckets - 1;
    const int bit = std::bit_width(static_cast<uint64_t>(nanoseconds)) - 1;
    const auto sixteenth = static_cast<int>(nanoseconds >> (bit - 4)) & 15;
    return (bit - kFirstBit) * 16 + sixteenth + 1;
  }

  static double middle_ns(int bucket) {
    if (bucket == 0) return std::ldexp(1.0, kFirstBit - 1);
    const int bit = (bucket - 1) / 16 + kFirstBit;
    return std::ldexp(16.5 + (bucket - 1) % 16, bit - 4);
  }

  std::array<std::atomic<uint32_t>, kBuckets> counts_{};
};

}  // namespace sinkstream
