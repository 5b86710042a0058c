// Launches steps and delivers their results: immediately, or where the runner samples one step
// later.
//
// Note: [When the engine waits]
// No step may be in flight while something other than a step reads or changes a sequence's state:
// when the host samples a token for `logprobs`, a job runs between two steps, a sequence ends
// early, or the engine closes. deliver_all() ensures this, and also runs when there is nothing to
// launch. A sequence with a grammar has no row in the step after one that returns its logits, nor
// has one that drafts or whose prompt is scored, so the others stay one step ahead.
#include <algorithm>
#include <numeric>

#include "common/check.h"
#include "common/fail_point.h"
#include "common/thread_pool.h"
#include "engine/engine.h"

namespace sinkstream {

namespace {

using Wants = StepSpan::Wants;

// What the sequence's row returns.
Wants wants_of(const Sequence& sequence, const PlanRow& row) {
  if (row.is_scored) return Wants::kAllLogits;
  if (!row.wants_logits) return Wants::kNothing;
  if (row.drafts > 0 && sequence.samples_on_host()) return Wants::kAllLogits;
  return sequence.samples_on_host() ? Wants::kLogits : Wants::kToken;
}

// Splits off what a row gets of the results that are left.
StepResult take_result(const FlightRow& row, int64_t vocab, StepResult* left) {
  StepResult own{.tokens = {}, .runs = {}, .logits = left->logits};
  if (row.wants == Wants::kToken) {
    own.tokens = left->tokens.first(static_cast<size_t>(left->runs.front()));
    left->tokens = left->tokens.subspan(own.tokens.size());
    left->runs = left->runs.subspan(1);
  }
  left->logits += logit_rows(row.wants, row.count) * vocab;
  return own;
}

}  // namespace

// Gives an admitted sequence a seat, if the runner has any.
void Engine::take_seat(Sequence& sequence) {
  if (free_seats_.empty()) return;
  const std::vector<int32_t> seen =
      sequence.session ? sequence.session->cached_ids()
                       : std::vector<int32_t>(sequence.prompt.begin(),
                                              sequence.prompt.begin() + sequence.prefilled);
  const int64_t seat = free_seats_.back();
  runner_.begin_sampling(seat, sequence.sampler.params(), sequence.window, seen);
  sequence.seat = seat;
  free_seats_.pop_back();
}

// The pages and the seat are free immediately, even if a step that uses them is still in flight:
// Note [Dropped rows] in flight.h.
void Engine::drop_in_flight(Sequence& sequence) {
  flights_.drop_rows_of(sequence);
  if (sequence.cache != nullptr) sequence.cache->drop_in_flight();
  if (sequence.seat < 0) return;
  free_seats_.push_back(sequence.seat);
  sequence.seat = -1;
}

void Engine::launch(Flight& flight) {
  std::erase_if(plan_.rows, [this](const PlanRow& row) {
    return running_[static_cast<size_t>(row.sequence)]->phase == Phase::kFinished;
  });
  for (const PlanRow& row : plan_.rows) {
    Sequence& sequence = *running_[static_cast<size_t>(row.sequence)];
    sequence.last_step = flight.record.step;
    sequence.share->view.served += static_cast<double>(row.count) / sequence.weight;
    sequence.cache->make_writable(row.count);
    flight.rows.push_back({&sequence, row.count, wants_of(sequence, row), row.drafts});
  }
  if (!flight.rows.empty()) launch_rows(flight);  // empty: every admitted sequence failed to start
  flights_.end_launch();
}

void Engine::launch_rows(const Flight& flight) {
  spans_.clear();
  for (const FlightRow& row : flight.rows) {
    const Sequence& sequence = *row.sequence;
    const bool is_sampled_there = sequence.prompt_left() == 0 && !sequence.samples_on_host();
    const bool has_guesses = !sequence.drafted.empty() && row.drafts > 0;
    spans_.push_back({.cache = sequence.cache,
                      .in_flight = sequence.in_flight(),
                      .tokens = has_guesses        ? sequence.drafted.data()
                                : is_sampled_there ? nullptr
                                                   : sequence.next_tokens(sequence.in_flight()),
                      .count = row.count,
                      .seat = sequence.seat,
                      .wants = row.wants,
                      .drafts = row.drafts});
  }
  runner_.launch(spans_);
  for (const FlightRow& row : flight.rows) {
    row.sequence->cache->add_in_flight(row.count);
    row.sequence->samples_in_flight += row.samples();
    row.sequence->drafts_in_flight += row.drafts;
  }
  prepare_masks(flight);  // while a device computes the logits
}

// Computes the masks of the rows whose tokens the host samples.
void Engine::prepare_masks(const Flight& flight) {
  constrained_.clear();
  for (const FlightRow& row : flight.rows) {
    if (row.sequence->grammar && row.is_sampled_on_host()) {
      constrained_.push_back(row.sequence->grammar.get());
    }
  }
  if (constrained_.empty()) return;
  options_.threads->run(std::ssize(constrained_), [this](int64_t i, int) {
    constrained_[static_cast<size_t>(i)]->prepare();
  });
}

// The results of the oldest step in flight, in the order of its rows.
StepResult Engine::await(const Flight& flight) {
  if (flight.rows.empty()) return {};
  const StepResult result = runner_.await();
  const auto wanted = std::count_if(flight.rows.begin(), flight.rows.end(),
                                    [](const auto& row) { return row.wants == Wants::kToken; });
  const int64_t in_runs = std::accumulate(result.runs.begin(), result.runs.end(), int64_t{0});
  SINKSTREAM_CHECK(std::ssize(result.runs) == wanted && std::ssize(result.tokens) == in_runs,
                   "a step returns ", result.tokens.size(), " tokens in ", result.runs.size(),
                   " runs for ", wanted, " rows");
  return result;
}

void Engine::deliver() {
  Flight& flight = flights_.begin_delivery();
  StepResult left = await(flight);
  flight.record.forward_end = options_.now();
  SINKSTREAM_FAIL_POINT("step.deliver");
  for (const FlightRow& row : flight.rows) {
    const StepResult result = take_result(row, model_.vocab(), &left);
    if (row.sequence != nullptr) deliver_row(row, result, &flight.record);
  }
  wake_list_->ring_all();
  SINKSTREAM_FAIL_POINT("step.delivered");
  record_step(&flight.record);
  learn_price(flight);
  flights_.end_delivery();
  // Let woken consumers run first: one that was scheduled onto one of these cores would otherwise
  // wait until the scheduler preempts a compute thread, often a whole step later.
  options_.threads->offer_cores();
}

void Engine::deliver_row(FlightRow row, const StepResult& result, StepRecord* record) {
  Sequence& sequence = *row.sequence;
  try {
    const int64_t count = row.count - row.drafts;
    sequence.cache->commit_in_flight(count);
    sequence.samples_in_flight -= row.samples();
    sequence.drafts_in_flight -= row.drafts;
    record->decoding += !sequence.is_prefilling();
    if (row.is_scored()) score_prompt(sequence, count, result.logits);
    count_progress(count, sequence, record);
    if (row.samples()) take_samples(row, result, sequence, record);
    if (row.drafts > 0 && sequence.phase != Phase::kFinished) sequence.cache->drop_in_flight();
    if (!sequence.is_prefilling() && !sequence.wants_reply())
      finish(sequence, FinishReason::kLength);
    if (sequence.phase != Phase::kFinished) publish(sequence);
  } catch (...) {  // an error here affects one request: only that one fails
    if (sequence.phase == Phase::kFinished) throw;
    // A chunk is in flight: the sequence ends once its rows have been delivered.
    if (sequence.is_prefilling() && sequence.in_flight() > 1) {
      sequence.failure = std::current_exception();
      return;
    }
    finish(sequence, FinishReason::kError, std::current_exception());
  }
}

// Delivers all steps in flight.
void Engine::deliver_all() {
  while (flights_.in_flight() > 0) deliver();
}

}  // namespace sinkstream
