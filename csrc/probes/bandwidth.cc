#include "probes/bandwidth.h"

#include <chrono>
#include <vector>

namespace sinkstream {
namespace {

constexpr int64_t kChunk = 1 << 18;  // bytes per task
constexpr int64_t kBlock = 1024;     // prefetched together, kAhead bytes before it is read
constexpr int64_t kAhead = 4096;
constexpr int64_t kLine = 64;

// Which cache to prefetch into depends on the processor. Locality arguments of __builtin_prefetch:
constexpr int kFirstCache = 3, kSecondCache = 2;

// Reads one word per cache line: memory delivers full lines, and instructions must not be the
// bottleneck.
template <int kCache>
uint64_t sum_of(const std::byte* from, const std::byte* end) {
  using Word = uint64_t __attribute__((may_alias));
  uint64_t sum = 0;
  for (; from < end; from += kBlock) {
    for (int64_t i = 0; i < kBlock; i += kLine) __builtin_prefetch(from + kAhead + i, 0, kCache);
    for (int64_t i = 0; i < kBlock; i += kLine) sum += *reinterpret_cast<const Word*>(from + i);
  }
  return sum;
}

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <int kCache>
double seconds_of(const std::byte* bytes, int64_t chunks, ThreadPool* pool) {
  std::vector<uint64_t> sums(pool->threads() * 8);  // a cache line for each thread
  const Clock::time_point start = Clock::now();
  pool->run(chunks, [&](int64_t chunk, int thread) {
    sums[thread * 8] += sum_of<kCache>(bytes + chunk * kChunk, bytes + (chunk + 1) * kChunk);
  });
  const double seconds = seconds_since(start);
  volatile uint64_t used = sums[0];  // or the compiler would drop the reads
  (void)used;
  return seconds;
}

// Reads `chunks` chunks and returns how many seconds it took.
using Read = double(const std::byte* bytes, int64_t chunks, ThreadPool* pool);

// The prefetch pattern that is faster right now. Reads everything once with each.
struct Faster {
  Read* read;
  double seconds;
};

Faster faster_way(const std::byte* bytes, int64_t chunks, ThreadPool* pool) {
  const double first = seconds_of<kFirstCache>(bytes, chunks, pool);
  const double second = seconds_of<kSecondCache>(bytes, chunks, pool);
  if (first < second) return {seconds_of<kFirstCache>, first};
  return {seconds_of<kSecondCache>, second};
}

double bytes_of(int64_t chunks) { return static_cast<double>(chunks * kChunk); }

}  // namespace

double read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool) {
  const int64_t chunks = count / kChunk;
  return bytes_of(chunks) / faster_way(bytes, chunks, pool).seconds;
}

double sustained_read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool,
                           double seconds) {
  const int64_t chunks = count / kChunk;
  Read* read = faster_way(bytes, chunks, pool).read;
  const Clock::time_point start = Clock::now();
  double reading = 0;
  int64_t reads = 0;
  do {
    reading += read(bytes, chunks, pool);
    ++reads;
  } while (seconds_since(start) < seconds);
  return static_cast<double>(reads) * bytes_of(chunks) / reading;
}

std::vector<double> read_times(const std::byte* bytes, int64_t count, ThreadPool* pool,
                               int64_t reads) {
  const int64_t chunks = count / kChunk;
  Read* read = faster_way(bytes, chunks, pool).read;
  std::vector<double> times(reads);
  for (double& seconds : times) seconds = read(bytes, chunks, pool);
  return times;
}

}  // namespace sinkstream
