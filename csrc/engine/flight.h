// Steps that have been launched and not delivered: what the engine remembers of each until its
// results are there. Knows no results.
//
// Note: [Dropped rows]
// A sequence that ends when its token is delivered may have a row in the step that follows, which
// is under way by then. That row's result is dropped, and nobody waits for it: the pages, the seat
// and the session are free at once. Whoever gets them is computed by a later launch, and launches
// and changes of pages take effect in their order (cache/page_memory.h), so that the row is written
// before anything of the next owner's. It has never counted in a length, so that the session goes
// on behind the last token that was delivered.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "engine/recorder.h"
#include "engine/sequence.h"
#include "model/device_sampler.h"

namespace sinkstream {

struct FlightRow {
  Sequence* sequence = nullptr;  // null: it has ended since, and what comes is dropped
  int64_t count = 0;             // tokens that the row appends
  SampleSpan::Wants wants = SampleSpan::Wants::kNothing;
};

struct Flight {
  StepRecord record;            // from its launch on
  std::vector<FlightRow> rows;  // in the order of its spans
};

// At most two, delivered in the order in which they were launched. The engine thread's own.
class Flights {
 public:
  explicit Flights(int64_t max_sequences) {
    for (Flight& flight : flights_) flight.rows.reserve(static_cast<size_t>(max_sequences));
  }

  int64_t in_flight() const { return launched_ - delivered_; }
  // The number of the step that is being launched or delivered, or of the one that comes next.
  int64_t current_step() const { return is_delivering_ ? delivered_ : launched_; }

  // The step that will be launched next, empty.
  Flight& begin_launch(Clock::time_point now) {
    Flight& flight = flight_of(launched_);
    flight.record = StepRecord();
    flight.record.step = launched_;
    flight.record.begin = now;
    flight.rows.clear();
    return flight;
  }
  // It is under way.
  void end_launch() { ++launched_; }

  // The step that has been under way for longest, which is being delivered from now on.
  Flight& begin_delivery() {
    is_delivering_ = true;
    return flight_of(delivered_);
  }
  // It has been delivered.
  void end_delivery() {
    is_delivering_ = false;
    ++delivered_;
  }

  // Calls `look` for each row that is under way, oldest first.
  template <typename Look>
  void for_each_row(const Look& look) const {
    for (int64_t step = delivered_; step < launched_; ++step) {
      const std::vector<FlightRow>& rows = flights_[static_cast<size_t>(step % kMaxInFlight)].rows;
      std::for_each(rows.begin(), rows.end(), look);
    }
  }
  // Whether the host must draw a token before its sequence can go on.
  bool want_host_logits() const {
    bool want = false;
    for_each_row([&](const FlightRow& row) { want |= row.wants == SampleSpan::Wants::kLogits; });
    return want;
  }
  // The sequence has ended: nothing that is under way is its own any more.
  void drop_rows_of(const Sequence& sequence) {
    for (Flight& flight : flights_) {
      for (FlightRow& row : flight.rows) {
        if (row.sequence == &sequence) row.sequence = nullptr;
      }
    }
  }

 private:
  static constexpr int64_t kMaxInFlight = 2;

  Flight& flight_of(int64_t step) { return flights_[static_cast<size_t>(step % kMaxInFlight)]; }

  std::array<Flight, kMaxInFlight> flights_;  // step n at n mod 2
  int64_t launched_ = 0;                      // steps since the engine began
  int64_t delivered_ = 0;                     // of those
  bool is_delivering_ = false;
};

}  // namespace sinkstream
