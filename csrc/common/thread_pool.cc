#include "common/thread_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/check.h"
#include "common/float_mode.h"
#include "common/quiet_thread.h"

namespace sinkstream {

namespace {

// 20,000 pauses are 0.2 to 1 ms: longer than any gap inside a step, so that workers never park
// there; short enough that an idle engine uses no CPU time.
constexpr int kSpins = 20000;

// Pauses before a waiting thread yields its core: about 20 µs.
constexpr int kPatience = 1000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : shares_(std::clamp(threads, 1, kMaxThreads)) {
  SINKSTREAM_CHECK(threads >= 1 && threads <= kMaxThreads, "threads must be in [1, ", kMaxThreads,
                   "], but is ", threads);
  workers_.reserve(threads - 1);
  try {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.push_back(start_quiet_thread("sinkstream pool", [this, thread] { work(thread); }));
    }
  } catch (const std::system_error& error) {
    const size_t started = workers_.size() + 1;
    stop();
    throw CapacityError(cat("load: the system started only ", started, " of ", threads,
                            " threads: ", error.what(), ". Choose fewer `threads`."),
                        "threads");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(int64_t tasks, const Loop& loop) {
  if (tasks <= 0) return;
  const FlushDenormals flush;
  if (workers_.empty() || tasks == 1) {
    if (loop.call_begin != nullptr) loop.call_begin(loop.begin, 0);
    for (int64_t task = 0; task < tasks; ++task) loop.call_body(loop.body, task, 0);
    return;
  }
  loop_ = loop;
  const auto count = static_cast<int64_t>(shares_.size());
  for (int64_t i = 0; i < count; ++i) {
    shares_[i].next.store(tasks * i / count, std::memory_order_relaxed);
    shares_[i].end = tasks * (i + 1) / count;
  }
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1);  // ordered with parked_: one side sees the other's change
  if (parked_.load() > 0) generation_.notify_all();

  take_tasks(0);
  for (int spin = 0; busy_.load(std::memory_order_acquire) > 0; ++spin) {
    // A late worker has lost its core, perhaps to this thread: yield it.
    if (spin < kPatience) {
      pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::offer_cores() {
  offers_.fetch_add(1, std::memory_order_relaxed);  // visible by the next generation
  std::this_thread::yield();
}

// Yields a worker's core if offer_cores() has been called since the last time.
void ThreadPool::take_offer(uint32_t* seen) {
  const uint32_t offers = offers_.load(std::memory_order_relaxed);
  if (offers == std::exchange(*seen, offers)) return;
  std::this_thread::yield();
}

void ThreadPool::take_tasks(int thread) {
  bool has_begun = loop_.call_begin == nullptr;
  try {
    for (size_t i = 0; i < shares_.size(); ++i) {
      Share& share = shares_[(thread + i) % shares_.size()];
      // Looks before it takes, so that a finished share is only read.
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int64_t task = share.next.fetch_add(1, std::memory_order_relaxed);
        if (task >= share.end) break;
        if (!std::exchange(has_begun, true)) loop_.call_begin(loop_.begin, thread);
        loop_.call_body(loop_.body, task, thread);
      }
    }
  } catch (...) {
    for (Share& share : shares_) share.next.store(share.end, std::memory_order_relaxed);
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void ThreadPool::work(int thread) {
  const FlushDenormals flush;
  uint32_t seen = 0;
  uint32_t offers = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (generation_.load(std::memory_order_acquire) != seen) break;
      take_offer(&offers);
      pause_briefly();
      if (spin % kPatience == kPatience - 1) std::this_thread::yield();
    }
    if (generation_.load(std::memory_order_acquire) == seen) {
      parked_.fetch_add(1);
      generation_.wait(seen);
      parked_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    take_offer(&offers);
    take_tasks(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace sinkstream
