// What must be true of an engine between two steps, whatever has happened: one function that looks
// at everything and returns every violation as a sentence. The tests' build of the engine calls it
// before each step, and a violation ends the engine; the shipped one does not contain it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cache/page_pool.h"
#include "engine/engine_stats.h"
#include "engine/flight.h"
#include "engine/sequence.h"
#include "engine/step_planner.h"

namespace sinkstream {

// All that the engine's thread knows when it has planned a step and not begun it.
struct EngineState {
  const std::deque<std::unique_ptr<Sequence>>& waiting;
  const std::vector<std::unique_ptr<Sequence>>& running;
  const std::vector<std::shared_ptr<Session>>& sessions;
  const PagePool& pool;  // nobody else holds pages of it
  const EngineStats& gauges;
  const Flights& flights;
  const std::vector<int64_t>& free_seats;
  int64_t seats = 0;  // at which sequences can draw; 0 where they do not
  const StepPlan& plan;
  const std::vector<WaitingView>& views;  // of the first waiting ones, which the plan was made from
  StepLimits limits;                      // that the plan was made under
};

// Empty where all is well. Takes nothing from the heap then, but for its first call in a thread.
std::vector<std::string> violations(const EngineState& state);

}  // namespace sinkstream
