// An engine whose clock stands still until a test advances it: timing is tested to the nanosecond,
// however slow the machine is.
#pragma once

#include <atomic>

#include "engine_fixture.h"

namespace sinkstream {

class ManualClock {
 public:
  static Clock::time_point now() { return Clock::time_point(Clock::duration(now_.load())); }
  static void pass(std::chrono::nanoseconds time) { now_ += time.count(); }

 private:
  static inline std::atomic<Clock::rep> now_{1'000'000'000};
};

class TimedEngineTest : public EngineTest {
 protected:
  TimedEngineTest() { options.now = &ManualClock::now; }

  // Advances the clock and waits until the engine has reacted, unless its model is blocked.
  void pass(std::chrono::nanoseconds time) {
    ManualClock::pass(time);
    engine().between_steps([] {});
  }

  // Waits until the engine has seen all that was done before.
  void wait_for_iteration() {
    engine().between_steps([] {});  // runs in the middle of an iteration
    engine().between_steps([] {});  // after that iteration
  }

  void wait_until_parked(int64_t sequences) {
    wait_until([&] { return engine().stats().parked == sequences; });
    wait_for_iteration();
  }
};

}  // namespace sinkstream
