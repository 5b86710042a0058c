#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "probes/bandwidth.h"
#include "probes/peak.h"

namespace sinkstream {
namespace {

// The tests check that a probe measures, not how fast a machine is.
constexpr double kLeast = 1e7, kMost = 1e16;  // per second

TEST(ReadProbe, GivesBytesASecondOnAnyNumberOfThreads) {
  const Buffer memory(int64_t{8} << 20, "the test");
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const double rate = read_rate(memory.data(), memory.bytes(), &pool);
    EXPECT_GT(rate, kLeast) << threads;
    EXPECT_LT(rate, kMost) << threads;
  }
}

TEST(ReadProbe, ReadsOnceAtLeastAndUntilItsTimeIsOver) {
  const Buffer memory(int64_t{8} << 20, "the test");
  ThreadPool pool(2);
  for (const double seconds : {0.0, 0.05}) {
    const auto start = std::chrono::steady_clock::now();
    const double rate = sustained_read_rate(memory.data(), memory.bytes(), &pool, seconds);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    EXPECT_GT(rate, kLeast) << seconds;
    EXPECT_LT(rate, kMost) << seconds;
    EXPECT_GE(taken.count(), seconds);
  }
}

TEST(ReadProbe, GivesTheTimeOfEachRead) {
  const Buffer memory(int64_t{8} << 20, "the test");
  ThreadPool pool(2);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<double> times = read_times(memory.data(), memory.bytes(), &pool, 5);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  ASSERT_EQ(times.size(), 5u);
  for (const double seconds : times) {
    EXPECT_GT(memory.bytes() / seconds, kLeast);
    EXPECT_LT(memory.bytes() / seconds, kMost);
  }
  EXPECT_LE(std::accumulate(times.begin(), times.end(), 0.0), taken.count());
}

TEST(PeakProbe, GivesOperationsASecondOnAnyNumberOfThreads) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const Peak peak = peak_rate(&pool, 1000000);
    EXPECT_GT(peak.rate, kLeast) << threads;
    EXPECT_LT(peak.rate, kMost) << threads;
  }
}

TEST(PeakProbe, TakesTheWidestInstructionThatTheProcessorHas) {
  ThreadPool pool(1);
  const std::string instruction = peak_rate(&pool, 12).instruction;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) {
    EXPECT_EQ(instruction, "vdpbf16ps, 512 bits");
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    EXPECT_EQ(instruction, "vfmadd231ps, 256 bits");
  } else {
    EXPECT_EQ(instruction, "a multiplication and an addition, 128 bits");
  }
#else
  EXPECT_EQ(instruction, "a multiplication and an addition, 128 bits");
#endif
}

}  // namespace
}  // namespace sinkstream
