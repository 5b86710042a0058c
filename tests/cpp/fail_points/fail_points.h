// What tests do at the places that common/fail_point.h names: wait, throw, or hold a thread there
// until the others are where the test wants them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace sinkstream {

using FailAction = std::function<void()>;

// Waits.
FailAction delay(std::chrono::microseconds duration);

// Throws a copy of `error`.
template <typename Error>
FailAction throws(Error error) {
  return [error] { throw error; };
}

// Does `action` at one visit only, the one behind `after` others.
FailAction once(FailAction action, int64_t after = 0);

// While it lives, every thread that comes to `place` does `action` there; several may do it at the
// same time. A place has one fail point at a time.
class FailPoint {
 public:
  FailPoint(std::string place, FailAction action);
  ~FailPoint();  // does not wait for a thread that is still in `action`
  FailPoint(const FailPoint&) = delete;
  FailPoint& operator=(const FailPoint&) = delete;

  int64_t visits() const;  // threads that have come by so far

  struct Armed;

 private:
  std::shared_ptr<Armed> armed_;
};

// Holds one thread at a place, the one that comes behind `after` others; they pass, and so do those
// that come later.
class Halt {
 public:
  explicit Halt(std::string place, int64_t after = 0);
  ~Halt();  // lets it go

  // Waits until the thread stands there; returns whether it came within ten seconds.
  [[nodiscard]] bool await() const;
  void release();

 private:
  struct Gate;
  std::shared_ptr<Gate> gate_;  // shared with the thread, which may leave after us
  FailPoint point_;
};

}  // namespace sinkstream
