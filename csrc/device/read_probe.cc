#include "device/read_probe.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace sinkstream {
namespace {

constexpr int64_t kChunk = 1 << 18;  // of one thread at a time
constexpr int64_t kBlock = 1024;     // asked for together, kAhead before it is read
constexpr int64_t kAhead = 4096;
constexpr int64_t kLine = 64;

// Which cache serves such requests best differs by processor.
constexpr int kFirstCache = 3, kSecondCache = 2;

// One word of each line: the line comes whole, and instructions are not what bounds this.
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
double rate_of(const std::byte* bytes, int64_t count, ThreadPool* pool) {
  const int64_t chunks = count / kChunk;
  std::vector<uint64_t> sums(pool->threads() * 8);  // a cache line for each thread
  const Clock::time_point start = Clock::now();
  pool->run(chunks, [&](int64_t chunk, int thread) {
    sums[thread * 8] += sum_of<kCache>(bytes + chunk * kChunk, bytes + (chunk + 1) * kChunk);
  });
  const double seconds = seconds_since(start);
  volatile uint64_t used = sums[0];  // or the compiler would leave out the reading
  (void)used;
  return static_cast<double>(chunks * kChunk) / seconds;
}

}  // namespace

double read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool) {
  return std::max(rate_of<kFirstCache>(bytes, count, pool),
                  rate_of<kSecondCache>(bytes, count, pool));
}

double sustained_read_rate(const std::byte* bytes, int64_t count, ThreadPool* pool,
                           double seconds) {
  const bool is_first_faster =
      rate_of<kFirstCache>(bytes, count, pool) > rate_of<kSecondCache>(bytes, count, pool);
  const auto rate = is_first_faster ? rate_of<kFirstCache> : rate_of<kSecondCache>;
  const Clock::time_point start = Clock::now();
  double times = 0;  // of one byte, added up
  int64_t reads = 0;
  do {
    times += 1 / rate(bytes, count, pool);
    ++reads;
  } while (seconds_since(start) < seconds);
  return static_cast<double>(reads) / times;
}

}  // namespace sinkstream
