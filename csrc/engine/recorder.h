// What any thread may read about an engine: a consistent snapshot of its counters, and its latest
// steps and phase changes. The engine's thread writes, any thread reads; one lock, held only to
// copy.
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

  // ---- the engine's thread; nothing here allocates ----

  void set_stats(const EngineStats& totals) {
    const std::lock_guard lock(mutex_);
    stats_ = totals;
  }

  // `step` is the last one counted in `totals`.
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
    // Outside the lock: quantiles take microseconds and need not match the counters.
    stats.step_p50_s = step_times_.quantile_s(0.5);
    stats.step_p99_s = step_times_.quantile_s(0.99);
    return stats;
  }

  // The steps that are still kept, from number `step` on.
  std::vector<StepRecord> steps_since(int64_t step) const {
    const std::lock_guard lock(mutex_);
    return steps_.since(step);
  }

  struct PhaseChanges {
    int64_t first = 0;  // number of the first one
    std::vector<PhaseChange> changes;
  };

  // The changes that are still kept, from number `number` on.
  PhaseChanges phase_changes_since(int64_t number) const {
    const std::lock_guard lock(mutex_);
    return {phase_changes_.first_since(number), phase_changes_.since(number)};
  }

 private:
  Histogram step_times_;
  mutable std::mutex mutex_;  // guards the members below
  EngineStats stats_;
  Latest<StepRecord, kSteps> steps_;
  Latest<PhaseChange, kPhaseChanges> phase_changes_;
};

}  // namespace sinkstream
