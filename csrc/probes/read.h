// How fast this machine reads memory: what bounds one token's forward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/thread_pool.h"

namespace sinkstream {

// Bytes a second of reading [bytes, bytes + count), on all threads of the pool, with nothing else
// to do: the faster of two ways to ask ahead, each of which reads everything once. `count` of at
// least a few hundred MB, or the caches answer.
double read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool);

// The mean of the faster way, begun again and again until `seconds` are over, at least once: beside
// work that takes as long, on a machine whose pace changes.
double sustained_read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool, double seconds);

// Seconds of each of `reads` reads, one after the other, all in the way that was faster before.
std::vector<double> read_times(const std::byte* bytes, int64_t count, ThreadPool* pool,
                               int64_t reads);

}  // namespace sinkstream
