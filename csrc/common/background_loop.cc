#include "common/background_loop.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/errors.h"
#include "common/quiet_thread.h"

namespace sinkstream {

BackgroundLoop::BackgroundLoop(int threads) : pool_(std::clamp(threads, 1, kMostThreads)) {}

BackgroundLoop::~BackgroundLoop() {
  stop();
  if (thread_.joinable()) thread_.join();
}

void BackgroundLoop::start(const char* name, int64_t tasks,
                           std::function<void(int64_t, int)> body) {
  try {
    thread_ = start_quiet_thread(name, [this, tasks, body = std::move(body)] {
      std::exception_ptr failure;
      try {
        pool_.run(tasks, [&](int64_t task, int thread) {
          if (!stopping_.load(std::memory_order_relaxed)) body(task, thread);
        });
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      failure_ = failure;
      ended_ = true;
      ended_changed_.notify_all();
    });
  } catch (const std::system_error& error) {
    throw CapacityError(
        cat("load: the system cannot start a thread for reading weights: ", error.what(), "."));
  }
}

bool BackgroundLoop::wait(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  const bool ended = ended_changed_.wait_for(lock, at_most, [this] { return ended_; });
  if (failure_) std::rethrow_exception(failure_);
  return ended;
}

}  // namespace sinkstream
