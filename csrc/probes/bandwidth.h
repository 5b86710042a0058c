// Measures this machine's memory bandwidth, which limits the speed of decoding one token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/thread_pool.h"

namespace sinkstream {

// Bytes per second when all threads of the pool read [bytes, bytes + count) and do nothing else:
// with the faster of two prefetch patterns, each of which reads everything once. `count` must be at
// least a few hundred MB, or caches serve the reads.
double read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool);

// The mean rate of the faster pattern, repeated until `seconds` have passed, at least once: for
// comparison with work that takes as long, on a machine whose speed varies.
double sustained_read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool, double seconds);

// Seconds of each of `reads` consecutive reads with the faster pattern.
std::vector<double> read_times(const std::byte* bytes, int64_t count, ThreadPool* pool,
                               int64_t reads);

}  // namespace sinkstream
