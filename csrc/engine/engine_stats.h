// What an engine counts, and a record of its latest steps.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

namespace sinkstream {

struct EngineStats {
  int64_t waiting = 0;  // sequences without memory
  int64_t running = 0;  // sequences that hold memory, parked ones included
  int64_t parked = 0;   // whose consumers lag
  int64_t pages = 0;
  int64_t free_pages = 0;
  // Since the engine began:
  int64_t requests = 0;  // that have been taken up
  int64_t steps = 0;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t evicted_tokens = 0;
  double step_s = 0;  // the sum of all steps' durations
};

// One step, for a timeline. Times are those of std::chrono::steady_clock.
struct StepRecord {
  int64_t step = 0;
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point forward_end;  // logits are there
  std::chrono::steady_clock::time_point end;          // tokens have been handed over
  int32_t decoding = 0;                               // sequences that decoded
  int32_t prompt_tokens = 0;                          // read
};

// The latest steps in a ring of fixed size. Not thread-safe.
class StepLog {
 public:
  static constexpr int64_t kSteps = 4096;

  void add(const StepRecord& record) {
    records_[static_cast<size_t>(count_ % kSteps)] = record;
    ++count_;
  }

  // The records whose `step` is at least `from`, oldest first, as far as they are still there.
  std::vector<StepRecord> since(int64_t from) const {
    std::vector<StepRecord> found;
    for (int64_t i = count_ > kSteps ? count_ - kSteps : 0; i < count_; ++i) {
      const StepRecord& record = records_[static_cast<size_t>(i % kSteps)];
      if (record.step >= from) found.push_back(record);
    }
    return found;
  }

 private:
  std::array<StepRecord, kSteps> records_{};
  int64_t count_ = 0;
};

}  // namespace sinkstream
