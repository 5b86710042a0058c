// Launches steps and delivers their results. With a device sampler a step is launched before the
// previous one is delivered; otherwise its results are ready when the launch returns.
//
// Note: [When the engine waits]
// No step may be in flight while something other than a step reads or changes a sequence's state:
// when the host samples a token for `logprobs`, a job runs between two steps, a sequence ends
// early, a prompt is scored, or the engine closes. deliver_all() ensures this, and also runs when
// there is nothing to launch. A sequence with a grammar has no row in the step after one that
// returns its logits, so the others stay one step ahead.
#include "common/check.h"
#include "common/fail_point.h"
#include "common/thread_pool.h"
#include "engine/engine.h"
#include "sampling/sample_errors.h"

namespace sinkstream {

namespace {

using Wants = SampleSpan::Wants;

// What the sequence's row returns.
Wants wants_of(const Sequence& sequence, bool wants_token) {
  if (!wants_token) return Wants::kNothing;
  return sequence.samples_on_host() ? Wants::kLogits : Wants::kToken;
}

Sampled sampled_of(const SampledToken& token, int64_t index, int64_t vocab) {
  if (!token.is_finite) throw non_finite_logits(index, "some are not");
  if (token.token < 0) throw no_token_left(index, vocab);
  return {.token = token.token, .logprob = token.logprob, .top = {}};
}

}  // namespace

// Gives an admitted sequence a seat in the device sampler.
void Engine::take_seat(Sequence& sequence) {
  if (device_sampler_ == nullptr) return;
  begin_sampling(free_seats_.back(), sequence);
  sequence.seat = free_seats_.back();
  free_seats_.pop_back();
}

void Engine::begin_sampling(int64_t seat, const Sequence& sequence) {
  const std::vector<int32_t> seen =
      sequence.session ? sequence.session->tokens.ids()
                       : std::vector<int32_t>(sequence.prompt.begin(),
                                              sequence.prompt.begin() + sequence.prefilled);
  device_sampler_->begin_sampling(seat, sequence.sampler.params(), sequence.window, seen);
}

// The seat is free immediately, even if a step that uses it is still in flight: Note [Dropped rows]
// in flight.h.
void Engine::release_seat(Sequence& sequence) {
  if (sequence.seat < 0) return;
  flights_.drop_rows_of(sequence);
  sequence.cache->drop_in_flight();
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
    sequence.cache->make_writable(row.count);
    if (row.is_scored && device_sampler_ != nullptr) {
      score_now(sequence, row.count, &flight.record);
    } else {
      flight.rows.push_back(
          {&sequence, row.count, wants_of(sequence, row.wants_logits), row.is_scored});
    }
  }
  if (flight.rows.empty()) {  // all rows were scored, or every admitted sequence failed to start
  } else if (device_sampler_ == nullptr) {
    forward(flight);
  } else {
    launch_with_sampling(flight);
  }
  flights_.end_launch();
}

void Engine::forward(const Flight& flight) {
  spans_.clear();
  for (const FlightRow& row : flight.rows) {
    const LogitsOf of_last = row.wants == Wants::kNothing ? LogitsOf::kNone : LogitsOf::kLast;
    spans_.push_back({.cache = row.sequence->cache,
                      .tokens = row.sequence->next_tokens(0),
                      .count = row.count,
                      .logits = row.is_scored ? LogitsOf::kAll : of_last});
  }
  model_.forward(spans_, logits_.as<float>());
  prepare_masks(flight);
}

// Computes and delivers scored rows of a model with a device sampler, in a forward pass of their
// own. Its seat has seen none of these tokens, so it begins again after the last of them.
void Engine::score_now(Sequence& sequence, int64_t count, StepRecord* record) {
  const ForwardSpan span{.cache = sequence.cache,
                         .tokens = sequence.next_tokens(0),
                         .count = count,
                         .logits = LogitsOf::kAll};
  model_.forward({&span, 1}, logits_.as<float>());
  deliver_row({&sequence, count, Wants::kNothing, /*is_scored=*/true}, nullptr, logits_.as<float>(),
              record);
}

void Engine::launch_with_sampling(const Flight& flight) {
  sample_spans_.clear();
  for (const FlightRow& row : flight.rows) {
    const Sequence& sequence = *row.sequence;
    const bool is_sampled_there = sequence.prompt_left() == 0 && !sequence.samples_on_host();
    sample_spans_.push_back(
        {.cache = sequence.cache,
         .in_flight = sequence.in_flight(),
         .tokens = is_sampled_there ? nullptr : sequence.next_tokens(sequence.in_flight()),
         .count = row.count,
         .seat = sequence.seat,
         .wants = row.wants});
  }
  device_sampler_->launch(sample_spans_);
  for (const FlightRow& row : flight.rows) {
    row.sequence->cache->add_in_flight(row.count);
    row.sequence->samples_in_flight += row.wants != Wants::kNothing;
  }
  prepare_masks(flight);  // while the device computes the logits
}

// Computes the masks of the rows whose tokens the host samples.
void Engine::prepare_masks(const Flight& flight) {
  constrained_.clear();
  for (const FlightRow& row : flight.rows) {
    if (row.sequence->grammar && row.wants == Wants::kLogits) {
      constrained_.push_back(row.sequence->grammar.get());
    }
  }
  if (constrained_.empty()) return;
  options_.threads->run(std::ssize(constrained_), [this](int64_t i, int) {
    constrained_[static_cast<size_t>(i)]->prepare();
  });
}

// The results of the oldest step in flight, in the order of its rows.
SampledStep Engine::await(const Flight& flight) {
  if (device_sampler_ == nullptr) return {.tokens = {}, .logits = logits_.as<float>()};
  if (flight.rows.empty()) return {};
  const SampledStep sampled = device_sampler_->await();
  const auto wanted = std::count_if(flight.rows.begin(), flight.rows.end(),
                                    [](const auto& row) { return row.wants == Wants::kToken; });
  SINKSTREAM_CHECK(std::ssize(sampled.tokens) == wanted, "a step returns ", sampled.tokens.size(),
                   " tokens instead of ", wanted);
  return sampled;
}

void Engine::deliver() {
  Flight& flight = flights_.begin_delivery();
  const SampledStep sampled = await(flight);
  flight.record.forward_end = options_.now();
  SINKSTREAM_FAIL_POINT("step.deliver");
  const SampledToken* token = sampled.tokens.data();
  const float* logits = sampled.logits;
  for (const FlightRow& row : flight.rows) {
    if (row.sequence != nullptr) deliver_row(row, token, logits, &flight.record);
    if (row.wants == Wants::kToken) ++token;
    if (row.wants == Wants::kLogits) logits += model_.vocab();
    if (row.is_scored) logits += row.count * model_.vocab();
  }
  wake_list_->ring_all();
  SINKSTREAM_FAIL_POINT("step.delivered");
  record_step(&flight.record);
  flights_.end_delivery();
  // Let woken consumers run first: one that was scheduled onto one of these cores would otherwise
  // wait until the scheduler preempts a compute thread, often a whole step later.
  options_.threads->offer_cores();
}

void Engine::deliver_row(FlightRow row, const SampledToken* token, const float* logits,
                         StepRecord* record) {
  Sequence& sequence = *row.sequence;
  try {
    if (device_sampler_ != nullptr && !row.is_scored) {
      sequence.cache->commit_in_flight(row.count);
      sequence.samples_in_flight -= row.wants != Wants::kNothing;
    }
    if (row.is_scored) score_prompt(sequence, row.count, logits);
    count_progress(row.count, sequence, record);
    if (row.is_scored && device_sampler_ != nullptr && sequence.to_score() == 0) {
      begin_sampling(sequence.seat, sequence);
    }
    if (row.wants == Wants::kLogits) take_token(sequence, sample(sequence, logits));
    if (row.wants == Wants::kToken) {
      take_token(sequence, sampled_of(*token, sequence.cache->length(), model_.vocab()));
    }
    if (!sequence.is_prefilling() && !sequence.wants_reply())
      finish(sequence, FinishReason::kLength);
    if (sequence.phase != Phase::kFinished) publish(sequence);
  } catch (...) {  // an error here affects one request: only that one fails
    if (sequence.phase == Phase::kFinished) throw;
    // A chunk is in flight: the sequence ends once its rows have been delivered.
    if (sequence.in_flight() > 1) {
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
