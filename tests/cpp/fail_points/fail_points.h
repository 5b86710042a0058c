// What tests do at the fail points of common/fail_point.h: wait, throw, or halt a thread until the
// others are where the test wants them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace sinkstream {

using FailAction = std::function<void()>;

FailAction delay(std::chrono::microseconds duration);

// Throws a copy of `error`.
template <typename Error>
FailAction throws(Error error) {
  return [error] { throw error; };
}

// Does `action` at one visit only, after skipping `after` visits.
FailAction once(FailAction action, int64_t after = 0);

// While it exists, every thread that reaches the fail point `name` does `action`, possibly at the
// same time. A fail point has at most one FailPoint at a time.
class FailPoint {
 public:
  FailPoint(std::string name, FailAction action);
  ~FailPoint();  // does not wait for threads still in `action`
  FailPoint(const FailPoint&) = delete;
  FailPoint& operator=(const FailPoint&) = delete;

  int64_t visits() const;  // visits so far

  struct Armed;

 private:
  std::shared_ptr<Armed> armed_;
};

// Halts one thread at a fail point, after letting `after` visits pass; later visits pass, too.
class Halt {
 public:
  explicit Halt(std::string name, int64_t after = 0);
  ~Halt();  // releases it

  // Waits until the thread is halted; returns whether that happened within ten seconds.
  [[nodiscard]] bool await() const;
  void release();

 private:
  struct Gate;
  std::shared_ptr<Gate> gate_;  // shared with the thread, which may outlive this
  FailPoint point_;
};

}  // namespace sinkstream
