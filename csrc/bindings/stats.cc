#include "bindings/stats.h"

#include <pybind11/stl.h>

#include <chrono>

namespace py = pybind11;

namespace sinkstream {

namespace {

py::dict to_python(const DurationBuckets& times) {
  py::list bounds, cumulative;
  for (size_t bucket = 0; bucket < DurationBuckets::kBoundsNs.size(); ++bucket) {
    bounds.append(static_cast<double>(DurationBuckets::kBoundsNs[bucket]) / 1e9);
    cumulative.append(times.cumulative(bucket));
  }
  py::dict fields;
  fields["count"] = times.count;
  fields["sum_s"] = static_cast<double>(times.sum_ns) * 1e-9;
  fields["bounds_s"] = bounds;
  fields["cumulative"] = cumulative;
  return fields;
}

double seconds(Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

py::dict stats_for_python(const Engine& engine) {
  const EngineStats stats = engine.stats();
  py::dict finished, fields;
  for (const FinishReason reason : kFinishReasons) {
    finished[name_of(reason)] = stats.finished[static_cast<size_t>(reason)];
  }
  fields["is_dead"] = stats.is_dead;
  fields["waiting"] = stats.waiting;
  fields["waiting_for_memory"] = stats.waiting_for_memory;
  fields["running"] = stats.running;
  fields["parked"] = stats.parked;
  fields["pages"] = stats.pages;
  fields["used_pages"] = stats.pages - stats.free_pages;
  fields["free_pages"] = stats.free_pages;
  fields["shared_pages"] = stats.shared_pages;
  fields["queue_lag"] = stats.queue_lag;
  fields["requests"] = stats.requests;
  fields["finished"] = finished;
  fields["steps"] = stats.steps;
  fields["prompt_tokens"] = stats.prompt_tokens;
  fields["generated_tokens"] = stats.generated_tokens;
  fields["evicted_tokens"] = stats.evicted_tokens;
  fields["draft_tokens"] = stats.draft_tokens;
  fields["accepted_tokens"] = stats.accepted_tokens;
  fields["step_s"] = static_cast<double>(stats.step_times.sum_ns) * 1e-9;
  fields["step_p50_s"] = stats.step_p50_s;
  fields["step_p99_s"] = stats.step_p99_s;
  fields["step_times"] = to_python(stats.step_times);
  fields["first_token_times"] = to_python(stats.first_token_times);
  return fields;
}

py::list steps_for_python(const Engine& engine, int64_t from) {
  py::list steps;
  for (const StepRecord& step : engine.steps_since(from)) {
    steps.append(py::make_tuple(step.step, seconds(step.begin), seconds(step.forward_end),
                                seconds(step.end), step.decoding, step.prompt_tokens,
                                step.free_pages));
  }
  return steps;
}

py::tuple phase_changes_for_python(const Engine& engine, int64_t from) {
  const Recorder::PhaseChanges found = engine.phase_changes_since(from);
  py::list changes;
  for (const PhaseChange& change : found.changes) {
    const bool is_end = change.phase == Phase::kFinished;
    changes.append(py::make_tuple(change.request, seconds(change.at), name_of(change.phase),
                                  is_end ? py::object(py::str(name_of(change.reason))) : py::none(),
                                  change.prompt_tokens, change.generated_tokens));
  }
  return py::make_tuple(found.first, changes);
}

}  // namespace sinkstream
