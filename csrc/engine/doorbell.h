// Wakes one sleeping thread. Shared by the engine and its streams, which may outlive the engine.
// Does not know why it rings.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace sinkstream {

class Doorbell {
 public:
  // Any thread. If no thread is waiting, the ring is kept for the next wait.
  void ring() {
    const std::lock_guard lock(mutex_);
    rung_ = true;
    is_rung_.notify_one();
  }

  // One thread. Sleeps until the bell has rung since the last wait.
  void wait() {
    std::unique_lock lock(mutex_);
    is_rung_.wait(lock, [this] { return rung_; });
    rung_ = false;
  }

  // Like `wait`, with a timeout. Returns whether it rang.
  bool wait_for(std::chrono::nanoseconds duration) {
    std::unique_lock lock(mutex_);
    const bool rang = is_rung_.wait_for(lock, duration, [this] { return rung_; });
    rung_ = false;
    return rang;
  }

 private:
  std::mutex mutex_;
  std::condition_variable is_rung_;
  bool rung_ = false;
};

}  // namespace sinkstream
