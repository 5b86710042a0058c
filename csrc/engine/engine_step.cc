// One step of the engine's thread: admit, launch, deliver, and handle each token. Launch and
// delivery are in engine_flight.cc.
#include <cmath>
#include <utility>

#include "common/fail_point.h"
#include "engine/engine.h"
#include "engine/stop_conditions.h"

namespace sinkstream {

// Delivers the oldest step in flight if there may be no more: this one, or where the runner samples
// the previous one. Then this one is delivered by the next run_step or deliver_all.
void Engine::run_step() {
  Flight& flight = flights_.begin_launch(options_.now());
  SINKSTREAM_FAIL_POINT("step.admit");
  admit();
  SINKSTREAM_FAIL_POINT("step.launch");
  launch(flight);
  if (flights_.in_flight() == most_in_flight()) deliver();
  remove_finished();
}

void Engine::admit() {
  for (int64_t i = 0; i < plan_.admit; ++i) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    Sequence& sequence = *running_.back();
    --totals_.waiting;
    ++totals_.running;
    ++sequence.share->view.running;
    sequence.phase = sequence.stats.phase = Phase::kPrefill;
    sequence.acceptance = Acceptance(&acceptance_);
    record_phase(sequence);
    try {
      sequence.guesses.reserve(kMaxSpeculation);
      sequence.drafted.reserve(1 + kMaxSpeculation);
      if (!sequence.session) attach_cache(sequence, shared_prefixes_[static_cast<size_t>(i)]);
      take_seat(sequence);
      sequence.stats.cache_bytes = sequence.cache->bytes();
      sequence.stream->staged().add_mark(StreamMark::Kind::kStarted, sequence.prompt_tokens);
      if (sequence.scores_prompt()) {
        sequence.stream->stage_prompt_token(
            {.token = sequence.prompt.front(), .logprob = NAN, .top = {}});
      }
      sequence.stream->publish(sequence.stats);
    } catch (...) {  // no memory for its bookkeeping: only this sequence fails
      finish(sequence, FinishReason::kError, std::current_exception());
    }
  }
}

void Engine::attach_cache(Sequence& sequence, const SharedPrefix& shared) {
  make_cache(&sequence.own_cache, sequence.window, sequence.max_length, shared);
  sequence.cache = &*sequence.own_cache;
  const auto cached = std::span(sequence.prompt).first(static_cast<size_t>(shared.count));
  sequence.sampler.append(cached);
  for (const int32_t id : cached) ngrams_.learn(&sequence.tail, id);
  sequence.prefilled = sequence.stats.cached_tokens = shared.count;
  sequence.stats.live_tokens = sequence.cache->live();
}

// Counts the `count` tokens that have just been kept in the cache.
void Engine::count_progress(int64_t count, Sequence& sequence, StepRecord* record) {
  StreamBatch& staged = sequence.stream->staged();
  const std::span<const int32_t> ids(sequence.next_tokens(0), static_cast<size_t>(count));
  sequence.sampler.append(ids);
  for (const int32_t id : ids) ngrams_.learn(&sequence.tail, id);
  if (sequence.session) {
    TokenLog& text = sequence.session->tokens;  // it may have the first ones already
    const int64_t known = std::min(text.length() - (sequence.cache->length() - count), count);
    text.append(ids.subspan(static_cast<size_t>(known)));
    sequence.session->publish_stats();
  }
  if (sequence.is_prefilling()) {
    sequence.prefilled += count;
    staged.add_mark(StreamMark::Kind::kPrefill, sequence.prefilled);
    if (!sequence.is_prefilling()) end_prompt(sequence);
    totals_.prompt_tokens += count;
    record->prompt_tokens += static_cast<int32_t>(count);
  } else {
    sequence.last_token = -1;
  }
  const int64_t evicted = sequence.evicted() - sequence.stats.evicted_tokens;
  if (evicted > 0) staged.add_mark(StreamMark::Kind::kEvicted, evicted);
  sequence.stats.evicted_tokens += evicted;
  sequence.stats.live_tokens = sequence.cache->live();
  totals_.evicted_tokens += evicted;
}

void Engine::end_prompt(Sequence& sequence) {
  sequence.prompt = std::vector<int32_t>();
  TextTail tail = sequence.tail;
  for (const int32_t id : sequence.prediction) ngrams_.learn(&tail, id);
  sequence.prediction = std::vector<int32_t>();
}

// Scores the `count` prompt tokens after those of its row by the row's logits, [count, vocab].
void Engine::score_prompt(const Sequence& sequence, int64_t count, const float* logits) {
  const int64_t vocab = model_.vocab(), top_count = *sequence.sampler.params().prompt_logprobs;
  const int32_t* const next = sequence.next_tokens(1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = sequence.prefilled + i + 1;
    sequence.stream->stage_prompt_token(score_token(logits + i * vocab, vocab, next[i], index,
                                                    top_count, *options_.kernels,
                                                    Launch{options_.threads}));
  }
}

Sampled Engine::sample(const Sequence& sequence, const float* logits) {
  const TokenMask mask = sequence.grammar ? sequence.grammar->allowed() : TokenMask();
  return sequence.sampler.sample(logits, sequence.cache->length(), *options_.kernels,
                                 Launch{options_.threads}, scratch_, mask);
}

// Tokens of one step arrive together: the time until the next step's is divided among them.
void Engine::record_token_time(Sequence& sequence) {
  if (sequence.phase == Phase::kParked) return;  // sampled before the pause, which is not timed
  if (sequence.timed_step == flights_.current_step()) {
    ++sequence.timed_tokens;
    return;
  }
  const Clock::time_point now = options_.now();
  StreamStats& stats = sequence.stats;
  if (sequence.last_token_at) {
    const std::chrono::nanoseconds gap = now - *sequence.last_token_at;
    for (int64_t i = 0; i < sequence.timed_tokens; ++i) {
      sequence.stream->record_gap(gap.count() / sequence.timed_tokens);
    }
    stats.decode_s += std::chrono::duration<double>(gap).count();
    stats.decode_gaps += sequence.timed_tokens;
  } else if (stats.first_token_s < 0) {
    const std::chrono::nanoseconds waited = now - sequence.submitted;
    stats.first_token_s = std::chrono::duration<double>(waited).count();
    totals_.first_token_times.add(waited.count());
  }
  sequence.last_token_at = now;
  sequence.timed_step = flights_.current_step();
  sequence.timed_tokens = 1;
}

void Engine::take_token(Sequence& sequence, const Sampled& sampled) {
  if (sequence.phase == Phase::kPrefill) {
    sequence.phase = sequence.stats.phase = Phase::kDecode;
    record_phase(sequence);
  }
  sequence.last_token = sampled.token;
  ++sequence.stats.generated_tokens;
  ++totals_.generated_tokens;
  record_token_time(sequence);
  if (sequence.grammar) sequence.grammar->accept(sampled.token);
  stage_token(sequence, sampled);
}

void Engine::stage_token(Sequence& sequence, const Sampled& sampled) {
  const std::optional<FinishReason> reason = finish_at_token(sequence, sampled.token, end_tokens_);
  sequence.stream->stage_token(sampled);
  if (reason) finish(sequence, *reason);
}

void Engine::publish(Sequence& sequence) {
  SINKSTREAM_FAIL_POINT("step.publish");
  const bool is_replying = sequence.phase != Phase::kPrefill;
  const int64_t interval = sequence.sampler.params().stream_interval;
  if (is_replying && !sequence.stream->is_piece_complete(interval)) return;
  const bool has_room = sequence.stream->publish(sequence.stats);
  if (has_room || sequence.phase != Phase::kDecode) return;
  sequence.phase = Phase::kParked;
  sequence.last_token_at.reset();  // the pause is the consumer's, not a gap between tokens
  ++totals_.parked;
  record_phase(sequence);
}

// By the time the consumer sees the end, the pages are free, the gauges are up to date, and the
// session is ready for its next turn.
void Engine::finish(Sequence& sequence, FinishReason reason, std::exception_ptr error) {
  try {
    if (sequence.text.flush(&sequence.stream->staged().text) && reason == FinishReason::kLength) {
      reason = FinishReason::kStopString;
    }
  } catch (...) {  // no memory for the last characters; the end must still arrive
    if (!error) error = std::current_exception();
    reason = FinishReason::kError;
  }
  sequence.stream->stage_rest_of_text();
  if (sequence.phase == Phase::kWaiting) {
    --totals_.waiting;
  } else {
    --totals_.running;
    --sequence.share->view.running;
  }
  if (sequence.phase == Phase::kParked) --totals_.parked;
  drop_in_flight(sequence);
  if (sequence.share != nullptr) shares_.leave(std::exchange(sequence.share, nullptr));
  sequence.cache = nullptr;
  sequence.own_cache.reset();
  sequence.phase = sequence.stats.phase = Phase::kFinished;
  ++totals_.finished.at(static_cast<size_t>(reason));
  record_phase(sequence, reason);
  sequence.stream->count_staged();
  publish_stats();
  if (sequence.session) finish_turn(sequence);
  SINKSTREAM_FAIL_POINT("step.finish");
  sequence.stream->finish(reason, std::move(error), sequence.stats);
}

void Engine::remove_finished() {
  std::erase_if(running_, [](const auto& s) { return s->phase == Phase::kFinished; });
}

void Engine::record_step(StepRecord* record) {
  record->end = options_.now();
  totals_.step_times.add(std::chrono::nanoseconds(record->end - record->begin).count());
  ++totals_.steps;
  update_page_stats();
  record->free_pages = totals_.free_pages;
  recorder_.add_step(*record, totals_);
}

}  // namespace sinkstream
