// An engine's counters: plain values, copied together, so that they are consistent.
#pragma once

#include <array>
#include <cstdint>

#include "engine/duration_buckets.h"
#include "engine/token_stream.h"

namespace sinkstream {

struct EngineStats {
  bool is_dead = false;            // true after a failed step
  int64_t waiting = 0;             // sequences without memory
  int64_t waiting_for_memory = 0;  // of these, those that wait for it, and not for a seat
  int64_t running = 0;             // sequences with memory, parked ones included
  int64_t parked = 0;              // their consumers lag
  int64_t pages = 0;
  int64_t free_pages = 0;
  int64_t shared_pages = 0;  // with more than one holder
  // Since the engine started:
  int64_t requests = 0;  // submitted: waiting + running + the sum of `finished`
  std::array<int64_t, std::size(kFinishReasons)> finished{};  // by FinishReason
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  // prefilled
  int64_t generated_tokens = 0;
  int64_t draft_tokens = 0;     // guesses that steps verified
  int64_t accepted_tokens = 0;  // of those, guesses that were right
  int64_t evicted_tokens = 0;
  DurationBuckets step_times;         // one for each step
  DurationBuckets first_token_times;  // from a request to its first token
  // Filled in by Recorder::stats and Engine::stats:
  double step_p50_s = 0;  // accurate to 3 %
  double step_p99_s = 0;
  int64_t queue_lag = 0;  // tokens ready but not taken, over all streams
};

}  // namespace sinkstream
