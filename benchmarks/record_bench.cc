// The cost of recording a step for `Model.stats` and `sinkstream.trace`.
//
//   record_bench
//
// Updates the step's two buckets, copies all counters and adds the record to the ring, as
// Engine::record_step does; then records a request's change of phase.
#include <chrono>
#include <cstdio>

#include "engine/recorder.h"

namespace {

using namespace sinkstream;
using Clock = std::chrono::steady_clock;

template <typename Body>
double ns_each(int64_t count, const Body& body) {
  const auto begin = Clock::now();
  for (int64_t i = 0; i < count; ++i) body(i);
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() /
         static_cast<double>(count);
}

}  // namespace

int main() {
  static Recorder recorder;
  EngineStats totals;
  StepRecord step;
  const auto record_step = [&](int64_t i) {
    step.step = i;
    step.begin = Clock::time_point(std::chrono::nanoseconds(i * 5'000'000));
    step.forward_end = step.begin + std::chrono::nanoseconds(4'000'000 + i % 1'000'000);
    step.end = step.forward_end + std::chrono::nanoseconds(20'000);
    totals.step_times.add(std::chrono::nanoseconds(step.end - step.begin).count());
    ++totals.steps;
    recorder.add_step(step, totals);
  };
  const auto change_phase = [&](int64_t i) {
    recorder.add_phase_change({.request = i, .at = Clock::now(), .phase = Phase::kDecode});
  };
  const int64_t count = 2'000'000;
  ns_each(count, record_step);
  std::printf("recorder bytes            %8zu\n", sizeof(Recorder));
  std::printf("counters bytes            %8zu\n", sizeof(EngineStats));
  std::printf("record a step, ns         %8.1f\n", ns_each(count, record_step));
  std::printf("record a phase change, ns %8.1f\n", ns_each(count, change_phase));
  std::printf("read all counters, ns     %8.1f\n",
              ns_each(10'000, [&](int64_t) { totals.requests += recorder.stats().requests; }));
}
