// Steps that have been launched but not delivered, and what delivery needs to know about each.
// Holds no results.
//
// Note: [Dropped rows]
// A sequence that ends when its token is delivered may have a row in the next step, which is
// already in flight. That row's result is dropped without waiting for it: the pages, the seat and
// the session are free immediately. This is safe because launches and page changes take effect in
// order (cache/page_memory.h): the dropped row is written before any launch for the next owner. The
// row was never counted in a length, so the session continues after the last delivered token.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "engine/recorder.h"
#include "engine/sequence.h"
#include "model/step_runner.h"

namespace sinkstream {

struct FlightRow {
  using Wants = StepSpan::Wants;

  Sequence* sequence = nullptr;  // null: it has ended since, and the row's result is dropped
  int64_t count = 0;             // tokens that the row appends
  Wants wants = Wants::kNothing;
  int64_t drafts = 0;  // of `count`, the last, which stay only if they are sampled

  // Whether tokens are sampled after it, on the host or by the runner.
  bool samples() const { return wants == Wants::kToken || is_sampled_on_host(); }
  bool is_sampled_on_host() const { return wants == Wants::kLogits || is_verified_on_host(); }
  bool is_scored() const { return wants == Wants::kAllLogits && drafts == 0; }
  // Whether the host samples after each of its tokens: Note [Drafts] of drafts.h.
  bool is_verified_on_host() const { return wants == Wants::kAllLogits && drafts > 0; }
};

struct Flight {
  StepRecord record;            // starts at its launch
  std::vector<FlightRow> rows;  // in the order of its spans
};

// At most as many as the runner may have in flight, delivered in launch order. Owned by the
// engine's thread.
class Flights {
 public:
  explicit Flights(int64_t max_sequences) {
    for (Flight& flight : flights_) flight.rows.reserve(static_cast<size_t>(max_sequences));
  }

  int64_t in_flight() const { return launched_ - delivered_; }
  // The number of the step being launched or delivered, otherwise of the next one.
  int64_t current_step() const { return is_delivering_ ? delivered_ : launched_; }

  // The next step to launch, empty.
  Flight& begin_launch(Clock::time_point now) {
    Flight& flight = flight_of(launched_);
    flight.record = StepRecord();
    flight.record.step = launched_;
    flight.record.begin = now;
    flight.rows.clear();
    return flight;
  }
  // Marks the step as launched.
  void end_launch() { ++launched_; }

  // Starts to deliver the oldest step in flight, and returns it.
  Flight& begin_delivery() {
    is_delivering_ = true;
    return flight_of(delivered_);
  }
  void end_delivery() {
    is_delivering_ = false;
    ++delivered_;
  }

  // Calls `look` for each row in flight, oldest step first.
  template <typename Look>
  void for_each_row(const Look& look) const {
    for (int64_t step = delivered_; step < launched_; ++step) {
      const std::vector<FlightRow>& rows = flights_[static_cast<size_t>(step % kMaxInFlight)].rows;
      std::for_each(rows.begin(), rows.end(), look);
    }
  }
  // Whether a step in flight returns logits to the host.
  bool want_host_logits() const {
    bool want = false;
    for_each_row([&](const FlightRow& row) { want |= logit_rows(row.wants, row.count) > 0; });
    return want;
  }
  // Whether the host must sample a token before the next step. A sequence with a grammar sits out
  // that step instead: computing its mask would delay all others.
  bool stop_lookahead() const {
    bool stop = false;
    for_each_row([&](const FlightRow& row) {
      const bool samples = row.wants == FlightRow::Wants::kLogits && row.sequence != nullptr;
      stop |= samples && row.sequence->grammar == nullptr;
    });
    return stop;
  }
  // The sequence has ended: its rows in flight no longer belong to it.
  void drop_rows_of(const Sequence& sequence) {
    for (Flight& flight : flights_) {
      for (FlightRow& row : flight.rows) {
        if (row.sequence == &sequence) row.sequence = nullptr;
      }
    }
  }

 private:
  static constexpr int64_t kMaxInFlight = 2;  // StepRunner::most_in_flight() of any runner

  Flight& flight_of(int64_t step) { return flights_[static_cast<size_t>(step % kMaxInFlight)]; }

  std::array<Flight, kMaxInFlight> flights_;  // step n at n mod 2
  int64_t launched_ = 0;                      // steps since the engine started
  int64_t delivered_ = 0;                     // of those, how many were delivered
  bool is_delivering_ = false;
};

}  // namespace sinkstream
