// What anybody may look at: an engine's counters of one moment, and its latest steps and requests.
// The engine's thread writes, any thread reads; one lock guards what belongs together, and is held
// for a copy.
#pragma once

#include <mutex>
#include <vector>

#include "engine/engine_stats.h"
#include "engine/histogram.h"
#include "engine/timeline.h"

namespace sinkstream {

class Recorder {
 public:
  static constexpr int64_t kSteps = 4096;
  static constexpr int64_t kPhaseChanges = 4096;

  // ---- the engine's thread; none of it allocates ----

  void set_stats(const EngineStats& totals) {
    const std::lock_guard lock(mutex_);
    stats_ = totals;
  }

  // The step that `totals` has counted last.
  void add_step(const StepRecord& step, const EngineStats& totals) {
    const std::chrono::nanoseconds duration = step.end - step.begin;
    step_times_.record(duration.count());
    const std::lock_guard lock(mutex_);
    stats_ = totals;
    steps_.add(step);
  }

  void add_phase_change(const PhaseChange& change) {
    const std::lock_guard lock(mutex_);
    phase_changes_.add(change);
  }

  // ---- any thread ----

  EngineStats stats() const {
    EngineStats stats;
    {
      const std::lock_guard lock(mutex_);
      stats = stats_;
    }
    // Not under the lock: they take microseconds, and add up to nothing.
    stats.step_p50_s = step_times_.quantile_s(0.5);
    stats.step_p99_s = step_times_.quantile_s(0.99);
    return stats;
  }

  // From number `step` on, as far as they are still there.
  std::vector<StepRecord> steps_since(int64_t step) const {
    const std::lock_guard lock(mutex_);
    return steps_.since(step);
  }

  struct PhaseChanges {
    int64_t first = 0;  // the number of the first one
    std::vector<PhaseChange> changes;
  };

  // From number `number` on, as far as they are still there.
  PhaseChanges phase_changes_since(int64_t number) const {
    const std::lock_guard lock(mutex_);
    return {phase_changes_.first_since(number), phase_changes_.since(number)};
  }

 private:
  Histogram step_times_;
  mutable std::mutex mutex_;  // guards what follows
  EngineStats stats_;
  Latest<StepRecord, kSteps> steps_;
  Latest<PhaseChange, kPhaseChanges> phase_changes_;
};

}  // namespace sinkstream
