// One step of the engine's thread: admit, forward, sample, deliver, and whoever ends on the way.
#include <utility>

#include "common/fail_point.h"
#include "engine/engine.h"

namespace sinkstream {

void Engine::act() {
  step_ = StepRecord();
  step_.step = totals_.steps;
  step_.begin = options_.now();
  SINKSTREAM_FAIL_POINT("step.admit");
  admit();
  SINKSTREAM_FAIL_POINT("step.forward");
  forward();
  step_.forward_end = options_.now();
  SINKSTREAM_FAIL_POINT("step.deliver");
  deliver();
  SINKSTREAM_FAIL_POINT("step.delivered");
  forget_ended();
  record_step();
}

void Engine::admit() {
  for (int64_t i = 0; i < plan_.admit; ++i) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    Sequence& sequence = *running_.back();
    --totals_.waiting;
    ++totals_.running;
    sequence.phase = sequence.stats.phase = Phase::kPrefill;
    note_phase(sequence);
    try {
      if (!sequence.session) give_cache(sequence, beginnings_[static_cast<size_t>(i)]);
      sequence.stats.cache_bytes = sequence.cache->bytes();
      sequence.stream->staged().add_mark(StreamMark::Kind::kStarted, sequence.prompt_tokens);
      sequence.stream->publish(sequence.stats);
    } catch (...) {  // no memory for its bookkeeping: only this one fails
      end(sequence, FinishReason::kError, std::current_exception());
    }
  }
}

void Engine::give_cache(Sequence& sequence, const Beginning& beginning) {
  make_cache(&sequence.own_cache, sequence.window, sequence.max_length, beginning);
  sequence.cache = &*sequence.own_cache;
  sequence.sampler.append(std::span(sequence.prompt).first(static_cast<size_t>(beginning.count)));
  sequence.read = sequence.stats.cached_tokens = beginning.count;
}

void Engine::forward() {
  std::erase_if(plan_.rows, [this](const PlanRow& row) {
    return running_[static_cast<size_t>(row.sequence)]->phase == Phase::kFinished;
  });
  spans_.clear();
  for (const PlanRow& row : plan_.rows) {
    Sequence& sequence = *running_[static_cast<size_t>(row.sequence)];
    sequence.last_turn = step_.step;
    sequence.cache->make_writable(row.count);
    spans_.push_back({.cache = sequence.cache,
                      .tokens = sequence.next_tokens(),
                      .count = row.count,
                      .logits = row.wants_logits ? LogitsOf::kLast : LogitsOf::kNone});
  }
  if (!spans_.empty()) model_.forward(spans_, logits_.data());
}

void Engine::deliver() {
  const float* logits = logits_.data();
  for (const PlanRow& row : plan_.rows) {
    deliver_row(row, *running_[static_cast<size_t>(row.sequence)], logits);
    if (row.wants_logits) logits += model_.vocab();
  }
  due_bells_->ring();
}

void Engine::deliver_row(const PlanRow& row, Sequence& sequence, const float* logits) {
  try {
    account(row, sequence);
    if (row.wants_logits) sample(sequence, logits);
    if (!sequence.is_reading() && !sequence.wants_reply()) end(sequence, FinishReason::kLength);
    if (sequence.phase != Phase::kFinished) publish(sequence);
  } catch (...) {  // what happens here is one request's own: only this one fails
    if (sequence.phase == Phase::kFinished) throw;
    end(sequence, FinishReason::kError, std::current_exception());
  }
}

// The row's tokens are in the cache now.
void Engine::account(const PlanRow& row, Sequence& sequence) {
  StreamBatch& staged = sequence.stream->staged();
  const std::span<const int32_t> ids(sequence.next_tokens(), static_cast<size_t>(row.count));
  sequence.sampler.append(ids);
  if (sequence.session) {
    sequence.session->tokens.append(ids);
    sequence.session->share_stats();
  }
  if (sequence.is_reading()) {
    sequence.read += row.count;
    staged.add_mark(StreamMark::Kind::kPrefill, sequence.read);
    if (!sequence.is_reading()) sequence.prompt = std::vector<int32_t>();
    totals_.prompt_tokens += row.count;
    step_.prompt_tokens += static_cast<int32_t>(row.count);
  } else {
    sequence.last_token = -1;
    ++step_.decoding;
  }
  const int64_t evicted =
      sequence.cache->evicted() - sequence.evicted_before - sequence.stats.evicted_tokens;
  if (evicted > 0) staged.add_mark(StreamMark::Kind::kEvicted, evicted);
  sequence.stats.evicted_tokens += evicted;
  sequence.stats.live_tokens = sequence.cache->live();
  totals_.evicted_tokens += evicted;
}

void Engine::sample(Sequence& sequence, const float* logits) {
  const Sampled sampled = sequence.sampler.sample(
      logits, sequence.cache->length(), *options_.kernels, Launch{options_.threads}, scratch_);
  if (sequence.phase != Phase::kDecode) {
    sequence.phase = sequence.stats.phase = Phase::kDecode;
    note_phase(sequence);
  }
  sequence.last_token = sampled.token;
  ++sequence.stats.generated_tokens;
  ++totals_.generated_tokens;
  time_token(sequence);
  take_token(sequence, sampled);
}

void Engine::time_token(Sequence& sequence) {
  const Clock::time_point now = options_.now();
  StreamStats& stats = sequence.stats;
  if (sequence.last_token_at) {
    const std::chrono::nanoseconds gap = now - *sequence.last_token_at;
    sequence.stream->record_gap(gap.count());
    stats.decode_s += std::chrono::duration<double>(gap).count();
    ++stats.decode_gaps;
  } else if (stats.first_token_s < 0) {
    const std::chrono::nanoseconds waited = now - sequence.submitted;
    stats.first_token_s = std::chrono::duration<double>(waited).count();
    totals_.first_token_times.add(waited.count());
  }
  sequence.last_token_at = now;
}

void Engine::take_token(Sequence& sequence, const Sampled& sampled) {
  const SamplingParams& params = sequence.sampler.params();
  const bool is_end_token = end_tokens_.contains(sampled.token);
  const bool stops =
      sequence.stop_tokens.contains(sampled.token) || (is_end_token && !params.ignore_eos);
  const bool has_text = !stops && !is_end_token;
  const bool hits_stop_string =
      has_text && sequence.text.push(sampled.token, &sequence.stream->staged().text);
  sequence.stream->stage_token(sampled);
  if (stops) {
    end(sequence, FinishReason::kStop);
  } else if (hits_stop_string) {
    end(sequence, FinishReason::kStopString);
  } else if (sequence.stats.generated_tokens == params.max_tokens) {
    end(sequence, FinishReason::kLength);
  }
}

void Engine::publish(Sequence& sequence) {
  SINKSTREAM_FAIL_POINT("step.publish");
  const bool is_decoding = sequence.phase == Phase::kDecode;
  const int64_t interval = sequence.sampler.params().stream_interval;
  if (is_decoding && !sequence.stream->is_piece_complete(interval)) return;
  if (sequence.stream->publish(sequence.stats) || !is_decoding) return;
  sequence.phase = Phase::kParked;
  sequence.last_token_at.reset();  // the pause is the consumer's
  ++totals_.parked;
  note_phase(sequence);
}

// Its pages are free, and the gauges say so, before its consumer learns of the end; a session is
// ready for its next turn.
void Engine::end(Sequence& sequence, FinishReason reason, std::exception_ptr error) {
  try {
    if (sequence.text.flush(&sequence.stream->staged().text) && reason == FinishReason::kLength) {
      reason = FinishReason::kStopString;
    }
  } catch (...) {  // no memory for the last characters; the end itself must arrive
    if (!error) error = std::current_exception();
    reason = FinishReason::kError;
  }
  sequence.stream->stage_rest_of_text();
  if (sequence.phase == Phase::kWaiting) {
    --totals_.waiting;
  } else {
    --totals_.running;
  }
  if (sequence.phase == Phase::kParked) --totals_.parked;
  sequence.cache = nullptr;
  sequence.own_cache.reset();
  sequence.phase = sequence.stats.phase = Phase::kFinished;
  ++totals_.finished.at(static_cast<size_t>(reason));
  note_phase(sequence, reason);
  share_stats();
  if (sequence.session) end_turn(sequence);
  SINKSTREAM_FAIL_POINT("step.finish");
  sequence.stream->finish(reason, std::move(error), sequence.stats);
}

void Engine::forget_ended() {
  std::erase_if(running_, [](const auto& s) { return s->phase == Phase::kFinished; });
}

void Engine::record_step() {
  step_.end = options_.now();
  totals_.step_times.add(std::chrono::nanoseconds(step_.end - step_.begin).count());
  ++totals_.steps;
  look_at_pages();
  step_.free_pages = totals_.free_pages;
  recorder_.add_step(step_, totals_);
}

}  // namespace sinkstream
