// Measures this machine's memory bandwidth, which bounds the decoding of one token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/thread_pool.h"

namespace sinkstream {

// Bytes per second when all threads of the pool read [bytes, bytes + count) and do nothing else:
// with the faster of two ways to prefetch, each of which reads everything once. `count` must be at
// least a few hundred MB, or the caches serve the reads.
double read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool);

// The mean rate of the faster way, repeated until `seconds` have passed, at least once: to compare
// with work that takes as long, on a machine whose speed varies.
double sustained_read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool, double seconds);

// Seconds of each of `reads` consecutive reads with the faster way.
std::vector<double> read_times(const std::byte* bytes, int64_t count, ThreadPool* pool,
                               int64_t reads);

}  // namespace sinkstream
