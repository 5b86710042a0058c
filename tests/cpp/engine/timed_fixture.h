// An engine whose time stands still until a test lets some pass: what depends on time is tested to
// the nanosecond, however slow the machine is.
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

  // Lets time pass, and the engine do what it then has to, unless its model is being held.
  void pass(std::chrono::nanoseconds time) {
    ManualClock::pass(time);
    engine().between_steps([] {});
  }

  // Waits until the engine has looked at everything that was done before.
  void let_it_look() {
    engine().between_steps([] {});  // in the middle of its look
    engine().between_steps([] {});  // behind it
  }

  void wait_until_parked(int64_t sequences) {
    wait_until([&] { return engine().stats().parked == sequences; });
    let_it_look();
  }
};

}  // namespace sinkstream
