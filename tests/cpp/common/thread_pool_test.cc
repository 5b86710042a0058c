#include "common/thread_pool.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>

#include "common/errors.h"

namespace {

thread_local bool is_caller = false;
std::atomic<int> yields_of_workers{0};

}  // namespace

// Replaces the C library's, which std::this_thread::yield() calls.
extern "C" int sched_yield() noexcept {
  if (!is_caller) ++yields_of_workers;
  return static_cast<int>(syscall(SYS_sched_yield));
}

namespace sinkstream {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<int> calls(tasks, 0);
      pool.run(tasks, [&](int64_t task, int) { ++calls[task]; });
      EXPECT_EQ(calls, std::vector<int>(tasks, 1)) << threads << " threads, " << tasks << " tasks";
    }
  }
}

// The system refuses threads whose stacks do not fit into the address space.
#if !defined(__SANITIZE_ADDRESS__)  // which needs that address space itself
TEST(ThreadPool, SaysHowManyThreadsThereAreIfTheSystemRefusesMore) {
  const auto in_little_room = [] {
    std::ifstream status("/proc/self/statm");
    rlim_t pages = 0;
    status >> pages;
    const rlimit limit{pages * 4096 + (rlim_t{256} << 20), RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(3);
    try {
      ThreadPool pool(ThreadPool::kMaxThreads);
    } catch (const CapacityError& error) {
      std::fputs(error.what(), stderr);
      std::exit(error.param == "threads" ? 0 : 2);
    }
    std::exit(1);
  };
  EXPECT_EXIT(in_little_room(), testing::ExitedWithCode(0),
              "load: the system started only [0-9]+ of 1024 threads: .*Choose fewer `threads`");
}
#endif

TEST(ThreadPool, StartsThreadsThatTakeNoSignal) {
  ThreadPool pool(3);
  std::atomic<int> open{0};
  for (int round = 0; round < 50; ++round) {
    pool.run(8, [&](int64_t, int thread) {
      sigset_t blocked;
      pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
      if (thread > 0 && sigismember(&blocked, SIGINT) == 0) ++open;
    });
  }
  EXPECT_EQ(open.load(), 0);
}

TEST(ThreadPool, GivesThreadNumbersBelowTheCount) {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> seen(3);
  for (int round = 0; round < 200; ++round) {
    pool.run(64, [&](int64_t, int thread) { ++seen.at(thread); });
  }
  int total = 0;
  for (const auto& count : seen) total += count;
  EXPECT_EQ(total, 200 * 64);
}

TEST(ThreadPool, NeverRunsTwoTasksOnOneThreadNumberAtOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> collisions{0};
  for (int round = 0; round < 500; ++round) {
    pool.run(16, [&](int64_t, int thread) {
      if (inside[thread].fetch_add(1) != 0) ++collisions;
      inside[thread].fetch_sub(1);
    });
  }
  EXPECT_EQ(collisions.load(), 0);
}

TEST(ThreadPool, SeesWritesOfEarlierLoops) {
  ThreadPool pool(2);
  std::vector<int64_t> values(512, 0);
  for (int round = 1; round <= 2000; ++round) {
    pool.run(512, [&](int64_t task, int) { values[task] += task; });
  }
  for (int64_t i = 0; i < 512; ++i) ASSERT_EQ(values[i], 2000 * i);
}

TEST(ThreadPool, WakesParkedWorkers) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // long past the spinning
    std::atomic<int> calls{0};
    pool.run(10, [&](int64_t, int) { ++calls; });
    EXPECT_EQ(calls.load(), 10);
  }
}

// Without offer_cores() a worker waits about 20 µs before it yields. Loops follow faster here.
TEST(ThreadPool, EachWorkerOffersItsCoreBeforeTheNextTask) {
  ThreadPool pool(2);
  is_caller = true;
  pool.run(2, [](int64_t, int) {});
  for (int round = 0; round < 1000; ++round) {
    const int before = yields_of_workers.load();
    pool.offer_cores();
    pool.run(2, [](int64_t, int) {});
    ASSERT_GE(yields_of_workers.load() - before, 1) << "round " << round;
  }
  is_caller = false;
}

TEST(ThreadPool, UsesNoProcessorTimeWhenIdle) {
  ThreadPool pool(2);
  pool.run(2, [](int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();  // of all threads of the process
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.02);
}

TEST(ThreadPool, RethrowsATasksExceptionAndContinues) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.run(100,
                          [](int64_t task, int) {
                            if (task == 41) throw std::runtime_error("no");
                          }),
                 std::runtime_error);
  }
  std::atomic<int> calls{0};
  pool.run(5, [&](int64_t, int) { ++calls; });
  EXPECT_EQ(calls.load(), 5);
}

TEST(ThreadPool, EachThreadBeginsOnceBeforeItsFirstTask) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::vector<int> begun(threads, 0);
    std::atomic<int> arrived{0}, early{0};
    const auto begin = [&](int thread) { ++begun[thread]; };
    pool.run(0, begin, [](int64_t, int) {});
    EXPECT_EQ(begun, std::vector<int>(threads, 0)) << "there is no task";
    pool.run(3 * threads, begin, [&](int64_t, int thread) {
      if (begun[thread] != 1) ++early;
      ++arrived;
      while (arrived < threads) std::this_thread::yield();  // so that each thread gets a task
    });
    EXPECT_EQ(begun, std::vector<int>(threads, 1));
    EXPECT_EQ(early.load(), 0);
    pool.run(1, begin, [](int64_t, int thread) { EXPECT_EQ(thread, 0); });
    EXPECT_EQ(begun[0], 2) << "a single task is begun as well";
  }
}

TEST(ThreadPool, RethrowsTheExceptionOfABeginning) {
  ThreadPool pool(2);
  std::atomic<int> calls{0};
  const auto count = [&](int64_t, int) { ++calls; };
  for (const int64_t tasks : {1, 100}) {
    const auto refuse = [](int) { throw std::runtime_error("no"); };
    EXPECT_THROW(pool.run(tasks, refuse, count), std::runtime_error);
  }
  EXPECT_EQ(calls.load(), 0) << "a thread that has not begun takes no task";
  pool.run(5, count);
  EXPECT_EQ(calls.load(), 5);
}

TEST(ThreadPool, FlushesDenormalsOnEveryThreadAndRestoresTheCaller) {
  ThreadPool pool(3);
  volatile float tiny = 1e-39f;
  std::atomic<int> kept{0};
  pool.run(64, [&](int64_t, int) {
    if (tiny * 1.0f != 0.0f) ++kept;
  });
  EXPECT_EQ(kept.load(), 0);
  EXPECT_NE(tiny * 1.0f, 0.0f);
}

}  // namespace
}  // namespace sinkstream
