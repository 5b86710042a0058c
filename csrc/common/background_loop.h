// A parallel loop that runs in the background of its owner, who waits for its end with a time
// limit. Knows nothing about what the loop computes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "common/thread_pool.h"

namespace sinkstream {

// One thread owns it and calls its functions, except for `stop`, which tasks may call as well.
class BackgroundLoop {
 public:
  // `threads`: as many as a ThreadPool has, but at most kMostThreads. Throws CapacityError if the
  // system refuses one of them.
  explicit BackgroundLoop(int threads);
  // Stops after the tasks in progress.
  ~BackgroundLoop();
  BackgroundLoop(const BackgroundLoop&) = delete;
  BackgroundLoop& operator=(const BackgroundLoop&) = delete;

  // More threads read no faster than memory does.
  static constexpr int kMostThreads = 16;

  int threads() const { return pool_.threads(); }

  // Starts the loop, once: calls `body(task, thread)` for each task, as ThreadPool::run does, in
  // threads named `name`. Throws CapacityError if the system refuses the thread.
  void start(const char* name, int64_t tasks, std::function<void(int64_t, int)> body);
  // Leaves out all tasks that have not begun.
  void stop() { stopping_.store(true, std::memory_order_relaxed); }
  // Waits up to `at_most` for the loop to end, and returns whether it has. Rethrows the exception
  // that ended it, if any.
  bool wait(std::chrono::milliseconds at_most);

 private:
  ThreadPool pool_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards the members below
  std::condition_variable ended_changed_;
  bool ended_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace sinkstream
