#include "device/read_probe.h"

#include <chrono>
#include <vector>

namespace sinkstream {

double read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool) {
  using Clock = std::chrono::steady_clock;
  using Words = uint64_t __attribute__((vector_size(32), aligned(1), may_alias));
  constexpr int64_t kChunk = 1 << 18;
  const int64_t chunks = count / kChunk;
  std::vector<uint64_t> sums(pool->threads() * 8);  // a cache line for each thread
  const Clock::time_point start = Clock::now();
  pool->run(chunks, [&](int64_t chunk, int thread) {
    const std::byte* from = bytes + chunk * kChunk;
    Words sum[4] = {};
    for (int64_t i = 0; i < kChunk; i += 128) {
      __builtin_prefetch(from + i + 4096);
      __builtin_prefetch(from + i + 4096 + 64);
      for (int k = 0; k < 4; ++k) sum[k] += *reinterpret_cast<const Words*>(from + i + k * 32);
    }
    sums[thread * 8] += (sum[0] + sum[1] + sum[2] + sum[3])[0];
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  volatile uint64_t used = sums[0];  // or the compiler would leave out the reading
  (void)used;
  return static_cast<double>(chunks * kChunk) / seconds;
}

}  // namespace sinkstream
