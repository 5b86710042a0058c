// The latest events of an engine, in fixed-size memory: the source of traces. Times are from
// std::chrono::steady_clock. Holds no tokens or text.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/token_stream.h"

namespace sinkstream {

struct StepRecord {
  int64_t step = 0;  // numbered from 0
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point forward_end;  // logits are ready
  std::chrono::steady_clock::time_point end;          // tokens have been delivered
  int32_t decoding = 0;                               // sequences that decoded
  int32_t prompt_tokens = 0;                          // prefilled
  int64_t free_pages = 0;                             // at the end of the step
};

// A request has entered a phase.
struct PhaseChange {
  int64_t request = 0;
  std::chrono::steady_clock::time_point at;
  Phase phase = Phase::kWaiting;
  FinishReason reason = FinishReason::kStop;  // for Phase::kFinished
  int64_t prompt_tokens = 0;                  // in total
  int64_t generated_tokens = 0;               // so far
};

// The latest `kCapacity` records in a ring, numbered from 0 in the order they were added. Not
// thread-safe.
template <typename Record, int64_t kCapacity>
class Latest {
 public:
  void add(const Record& record) {
    records_[static_cast<size_t>(count_ % kCapacity)] = record;
    ++count_;
  }

  // The number that the first record of `since(from)` has or will have.
  int64_t first_since(int64_t from) const {
    return std::max({from, count_ - kCapacity, int64_t{0}});
  }

  // The records that are still kept, from number `from` on, oldest first.
  std::vector<Record> since(int64_t from) const {
    std::vector<Record> found;
    const int64_t first = first_since(from);
    if (first < count_) found.reserve(static_cast<size_t>(count_ - first));
    for (int64_t i = first; i < count_; ++i) {
      found.push_back(records_[static_cast<size_t>(i % kCapacity)]);
    }
    return found;
  }

 private:
  std::array<Record, kCapacity> records_{};
  int64_t count_ = 0;
};

}  // namespace sinkstream
