// The invariants of an engine between two steps: one function checks them all and returns each
// violation as a sentence. The tests' build of the engine calls it before each step, and a
// violation ends the engine; the shipped build does not contain it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cache/memory_pools.h"
#include "engine/engine_stats.h"
#include "engine/flight.h"
#include "engine/sequence.h"
#include "engine/step_planner.h"

namespace sinkstream {

// The engine thread's state after a step is planned and before it is launched.
struct EngineState {
  const std::deque<std::unique_ptr<Sequence>>& waiting;
  const std::vector<std::unique_ptr<Sequence>>& running;
  const std::vector<std::shared_ptr<Session>>& sessions;
  const MemoryPools& pools;  // used by this engine only
  const EngineStats& gauges;
  const Flights& flights;
  const std::vector<int64_t>& free_seats;
  int64_t most_in_flight = 1;  // of the runner
  int64_t seats = 0;           // that sequences use: the runner's, or 0
  const StepPlan& plan;
  const std::vector<WaitingView>& views;  // of the first waiting sequences; input of the plan
  StepLimits limits;                      // input of the plan
};

// Empty if all invariants hold. Then it allocates nothing, except on its first call in a thread.
std::vector<std::string> violations(const EngineState& state);

}  // namespace sinkstream
