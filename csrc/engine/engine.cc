// The functions for callers, and the engine thread's main loop. The step itself is in
// engine_step.cc.
#include "engine/engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/fail_point.h"
#include "common/float_mode.h"
#include "common/human_bytes.h"
#include "common/quiet_thread.h"
#include "engine/stop_conditions.h"

namespace sinkstream {

namespace {

// How long a sequence waits for memory whose holders are all parked or idle. Long enough for a slow
// consumer to resume reading, short enough not to look like a hang.
constexpr std::chrono::seconds kMemoryWaitTimeout{1};

// The error as a sentence. The fallbacks fit std::string's inline buffer: there may be no memory
// left.
std::string describe(const std::exception_ptr& cause) noexcept {
  try {
    std::rethrow_exception(cause);
  } catch (const std::bad_alloc&) {
    return "out of memory.";
  } catch (const std::exception& error) {
    try {
      std::string sentence = error.what();
      if (!sentence.ends_with('.')) sentence += '.';
      return sentence;
    } catch (...) {
      return "out of memory.";
    }
  } catch (...) {
    return "unknown.";
  }
}

// Leaves room for the decode row of every other sequence, so that max_tokens() never cuts a chunk.
int64_t fitting_chunk(const EngineOptions& options, const LanguageModel& model,
                      const StepRunner& runner) {
  const int64_t of_others = (options.max_sequences - 1) * (1 + runner.drafts());
  const int64_t max_uncut_chunk = model.max_tokens() - of_others;
  return std::clamp(max_uncut_chunk, int64_t{1}, options.prefill_chunk);
}

EngineOptions checked(EngineOptions options, const LanguageModel& model, const StepRunner& runner) {
  SINKSTREAM_CHECK(options.max_sequences >= 1 && options.prefill_chunk >= 1,
                   "max_sequences and prefill_chunk must be at least 1, but are ",
                   options.max_sequences, " and ", options.prefill_chunk);
  SINKSTREAM_CHECK(runner.seats() == 0 || runner.seats() >= options.max_sequences,
                   "the runner has ", runner.seats(), " seats, but ", options.max_sequences,
                   " sequences may run");
  SINKSTREAM_CHECK(runner.drafts() <= kLookAhead, "the runner drafts ", runner.drafts(),
                   " tokens, but a cache has room for ", kLookAhead);
  if (const StatePool* const states = options.pools.states) {
    SINKSTREAM_CHECK(states->lanes() >= StatePool::lanes_for(runner.most_in_flight()),
                     "states have ", states->lanes(), " lanes, too few for ",
                     runner.most_in_flight(), " steps in flight");
    SINKSTREAM_CHECK(runner.drafts() == 0,
                     "the runner drafts, but a state has no lane for a part "
                     "of a step: Note [Lanes] of cache/state_pool.h");
  }
  options.prefill_chunk = fitting_chunk(options, model, runner);
  return options;
}

StepRunner& runner_of(LanguageModel& model, int64_t max_sequences,
                      std::optional<HostRunner>* host_runner) {
  StepRunner* const own = model.step_runner();
  return own != nullptr ? *own : host_runner->emplace(model, max_sequences);
}

}  // namespace

Engine::Engine(LanguageModel& model, EngineOptions options)
    : model_(model),
      runner_(runner_of(model, options.max_sequences, &host_runner_)),
      options_(checked(std::move(options), model, runner_)),
      end_tokens_(options_.end_token_ids),
      flights_(options_.max_sequences),
      free_seats_(static_cast<size_t>(std::min(runner_.seats(), options_.max_sequences))),
      scratch_(model.vocab()),
      ngrams_(may_guess() ? options_.ngram_entries : 0) {
  running_.reserve(static_cast<size_t>(options_.max_sequences));
  drafting_.reserve(static_cast<size_t>(options_.max_sequences));
  std::iota(free_seats_.rbegin(), free_seats_.rend(), 0);
  totals_.pages = options_.pools.all().all_pages();
  publish_stats();
  thread_ = start_quiet_thread("sinkstream", [this] { run(); });
}

Engine::~Engine() { close(); }

// ---- the callers' side -----------------------------------------------------------------------

bool Engine::is_owner_process() const { return owner_.is_here(); }

void Engine::check_open(const char* where) const {
  if (status_ == Status::kClosed) {
    throw EngineDead(cat(where, ": the model is closed. Load it again."));
  }
  if (status_ == Status::kDead) {
    throw EngineDead(cat(where, ": the generation thread has stopped after a failure: ",
                         fatal_error_, " Load the model again."));
  }
}

Window Engine::window_of(const char* where, std::optional<int64_t> sinks) const {
  Window window = options_.window;
  if (!sinks) return options_.layers.main_window(window);
  const int64_t capacity = window.capacity();
  if (*sinks < 0 || *sinks >= capacity) {
    throw InvalidArgument(cat(where, ": `sinks` must be in [0, ", capacity - 1, "], but is ",
                              *sinks, ". Sinks and window share ", capacity, " tokens."),
                          "sinks");
  }
  window.sinks = *sinks;
  window.window = capacity - window.sinks;
  return options_.layers.main_window(window);
}

void Engine::check_prompt(const std::vector<int32_t>& prompt) const {
  if (prompt.empty()) {
    throw InvalidArgument("stream: `prompt` must hold at least 1 token, but is empty.", "prompt");
  }
  const int64_t vocab = model_.vocab();
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] >= 0 && prompt[i] < vocab) continue;
    throw InvalidArgument(cat("stream: item ", i, " of `prompt` must be a token id in [0, ", vocab,
                              "), but is ", prompt[i], "."),
                          "prompt");
  }
}

void Engine::check_text(const SamplingParams& params) const {
  if (options_.tokens || params.stop.empty()) return;
  throw InvalidArgument(
      "stream: `stop` must be empty: this checkpoint has no tokenizer. Use "
      "`stop_token_ids`.",
      "stop");
}

void Engine::check_grammar(const Request& request) const {
  if (!request.grammar) return;
  const int64_t tokens = request.params.max_tokens.value_or(0);
  if (tokens <= kMaxGrammarTokens) return;
  throw InvalidArgument(cat("stream: `max_tokens` must be at most ", kMaxGrammarTokens, " with `",
                            request.grammar->option(), "`, but is ", tokens, "."),
                        "max_tokens");
}

void Engine::check_fits(const Sequence& sequence) const {
  const MemoryPools& pools = options_.pools;
  const MemoryAmount all = pools.all();  // never changes
  if (sequence.memory.fits_in(all)) return;
  throw CapacityError(cat("stream: the request needs ",
                          human_bytes(pools.bytes_of(sequence.memory)),
                          " of cache, but the model has only ", human_bytes(pools.bytes_of(all)),
                          ". Load it with a larger `window` or `max_sequences`, or lower "
                          "`max_tokens`."));
}

void Engine::check(const Request& request) const {
  owner_.check("stream");
  validate(request.params, model_.vocab());
  check_text(request.params);
  check_grammar(request);
  SINKSTREAM_CHECK(request.weight > 0, "a share has the weight ", request.weight);
}

void Engine::enqueue(std::unique_ptr<Sequence> sequence) {
  SINKSTREAM_FAIL_POINT("submit.checked");
  {
    const std::lock_guard lock(mutex_);
    check_open("stream");
    arrivals_.push_back(std::move(sequence));
    ++enqueued_;
  }
  SINKSTREAM_FAIL_POINT("submit.enqueued");
  bell_->ring();
}

std::shared_ptr<TokenStream> Engine::make_stream() {
  return std::make_shared<TokenStream>(bell_, wake_list_, ++requests_, lag_);
}

std::shared_ptr<TokenStream> Engine::submit(Request request) {
  check_prompt(request.prompt);
  check(request);
  limit_length(&request);
  const Window window = window_of("stream", request.sinks);
  auto stream = make_stream();
  auto sequence = std::make_unique<Sequence>(std::move(request), window, options_.layers,
                                             options_.tokens.get(), stream, options_.now());
  check_fits(*sequence);
  enqueue(std::move(sequence));
  return stream;
}

void Engine::between_steps(const std::function<void()>& work, const char* where) {
  owner_.check(where);
  Job job;
  job.where = where;
  job.work = &work;
  std::unique_lock lock(mutex_);
  check_open(where);
  jobs_.push_back(&job);
  bell_->ring();
  job_done_.wait(lock, [&job] { return job.is_done; });
  if (job.failure) std::rethrow_exception(job.failure);
}

void Engine::close() {
  if (!is_owner_process()) return;
  {
    const std::lock_guard lock(mutex_);
    if (status_ == Status::kOpen) status_ = Status::kClosed;
  }
  SINKSTREAM_FAIL_POINT("close.marked");
  bell_->ring();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

EngineStats Engine::stats() const {
  owner_.check("stats");
  const int64_t enqueued = enqueued_.load();  // first: what is published later includes these
  EngineStats stats = recorder_.stats();
  // Not taken from the queue yet, or taken in a step that has not been published.
  const int64_t arriving = std::max<int64_t>(0, enqueued - stats.requests);
  stats.requests += arriving;
  stats.waiting += arriving;
  stats.queue_lag = lag_->load(std::memory_order_relaxed);
  return stats;
}

std::vector<StepRecord> Engine::steps_since(int64_t step) const {
  owner_.check("stats");
  return recorder_.steps_since(step);
}

Recorder::PhaseChanges Engine::phase_changes_since(int64_t number) const {
  owner_.check("stats");
  return recorder_.phase_changes_since(number);
}

// ---- the thread ------------------------------------------------------------------------------

void Engine::run() {
  const FlushDenormals flush;
  try {
    while (take_arrivals()) {
      SINKSTREAM_FAIL_POINT("step.arrivals_taken");
      if (!taken_jobs_.empty() || flights_.stop_lookahead()) deliver_all();
      finish_cancelled_and_expired();
      remove_closed_sessions();
      run_jobs();  // after memory was released: a job may need it
      unpark();
      plan();
      if constexpr (kHasFailPoints) check_invariants();
      if (!plan_.empty()) {
        stalled_since_.reset();
        run_step();
      } else if (flights_.in_flight() > 0) {
        deliver_all();
        remove_finished();
      } else {
        wait_for_work();
      }
    }
    deliver_all();
    finish_all([] { return nullptr; });
  } catch (...) {
    handle_fatal_error(std::current_exception());
  }
  wake_list_->ring_all();
  fail_jobs();
  remove_all_sessions();
}

// Takes what callers have queued. Returns whether the engine is still open.
bool Engine::take_arrivals() {
  bool is_open;
  {
    const std::lock_guard lock(mutex_);
    std::swap(arrivals_, arrived_);
    std::swap(jobs_, taken_jobs_);
    is_open = status_ == Status::kOpen;
  }
  count_arrivals(arrived_);
  for (std::unique_ptr<Sequence>& sequence : arrived_) {
    waiting_.push_back(std::move(sequence));
    Sequence& arrived = *waiting_.back();
    arrived.share = shares_.enter(arrived.share_key, arrived.weight);
    if (arrived.session) arrived.session->begin_turn(arrived.wants_reply());
  }
  arrived_.clear();
  return is_open;
}

void Engine::count_arrivals(const std::vector<std::unique_ptr<Sequence>>& arrivals) {
  totals_.requests += static_cast<int64_t>(arrivals.size());
  totals_.waiting += static_cast<int64_t>(arrivals.size());
  for (const std::unique_ptr<Sequence>& sequence : arrivals) record_phase(*sequence);
}

void Engine::run_jobs() {
  for (Job* job : taken_jobs_) {
    std::exception_ptr failure;
    try {
      (*job->work)();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    finish_job(job, std::move(failure));
  }
  taken_jobs_.clear();
}

// Requires mutex_. Once it is unlocked the caller may destroy `job`.
void Engine::finish_job(Job* job, std::exception_ptr failure) {
  job->failure = std::move(failure);
  job->is_done = true;
  job_done_.notify_all();
}

// Cancelled and expired sequences end in any phase. Sequences that want no tokens end before they
// start.
void Engine::finish_cancelled_and_expired() {
  const Clock::time_point now = options_.now();
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    const auto reason = early_finish(*sequence, now);
    if (!reason) continue;
    deliver_all();  // delivers its tokens in flight, which may end it
    if (sequence->phase != Phase::kFinished) finish(*sequence, *reason, sequence->failure);
  }
  remove_finished();
  bool has_ended = false;
  for (const std::unique_ptr<Sequence>& sequence : waiting_) {
    std::optional<FinishReason> reason = early_finish(*sequence, now);
    // A session prefills its turn even if no reply is wanted, and a prompt may be scored.
    if (!reason && !sequence->wants_reply() && !sequence->session && !sequence->scores_prompt()) {
      sequence->stream->staged().add_mark(StreamMark::Kind::kStarted, sequence->prompt_tokens);
      reason = FinishReason::kLength;
    }
    if (!reason) continue;
    has_ended = true;
    finish(*sequence, *reason);
  }
  if (has_ended)
    std::erase_if(waiting_, [](const auto& s) { return s->phase == Phase::kFinished; });
}

void Engine::unpark() {
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->phase != Phase::kParked || sequence->stream->is_full()) continue;
    sequence->phase = Phase::kDecode;
    --totals_.parked;
    record_phase(*sequence);
  }
}

// Moves the sequences that are admitted next to the front, in order. A session already has
// its memory, so its turn goes ahead of sequences that wait for memory.
void Engine::order_waiting(std::span<const ShareView> shares, size_t most) {
  if (most == 0 || waiting_.size() < 2) return;
  turns_.assign(shares.begin(), shares.end());
  candidates_.clear();
  for (const std::unique_ptr<Sequence>& sequence : waiting_) {
    candidates_.push_back({.share = sequence->share->index,
                           .priority = sequence->priority(),
                           .has_memory = sequence->session != nullptr});
  }
  for (size_t i = 0; i < most; ++i) {
    const auto left = std::span(candidates_).subspan(i);
    const auto next = static_cast<int64_t>(i + next_to_admit(left, turns_));
    ++turns_[static_cast<size_t>(candidates_[static_cast<size_t>(next)].share)].running;
    const auto move_up = [i, next](auto from) {
      std::rotate(from + static_cast<int64_t>(i), from + next, from + next + 1);
    };
    move_up(candidates_.begin());
    move_up(waiting_.begin());
  }
}

void Engine::plan() {
  waiting_views_.clear();
  const size_t free_sequences = static_cast<size_t>(options_.max_sequences) - running_.size();
  const size_t most = std::min(free_sequences, waiting_.size());
  const std::span<const ShareView> shares = shares_.views();
  order_waiting(shares, most);
  shared_prefixes_.clear();
  for (size_t i = 0; i < most; ++i) {
    const Sequence& sequence = *waiting_[i];
    const SharedPrefix shared = shared_prefix_of(sequence);
    shared_prefixes_.push_back(shared);
    waiting_views_.push_back({.memory = sequence.memory - shared.saved,
                              .prompt_left = sequence.prompt_tokens - shared.count,
                              .length = sequence.session ? sequence.cache->length() : shared.count,
                              .wants_reply = sequence.wants_reply(),
                              .to_score = sequence.to_score(),
                              .share = sequence.share->index,
                              .priority = sequence.priority()});
  }
  running_views_.clear();
  for (const std::unique_ptr<Sequence>& s : running_) {
    // A prompt whose scores are not taken is read no further.
    const bool waits_for_reader = s->to_score() > 0 && s->stream->is_full();
    running_views_.push_back({.is_runnable = s->phase != Phase::kParked &&
                                             s->has_more_to_launch() && !s->awaits_result() &&
                                             !waits_for_reader,
                              .prompt_left = s->prompt_left(),
                              .length = s->cache->next_index(),
                              .last_step = s->last_step,
                              .wants_reply = s->wants_reply(),
                              .to_score = s->to_score(),
                              .drafts = s->wanted_drafts(runner_.drafts()),
                              .share = s->share->index,
                              .priority = s->priority()});
  }
  const StepLimits limits{.free = options_.pools.free(),
                          .max_sequences = options_.max_sequences,
                          .max_tokens = model_.max_tokens(),
                          .prefill_chunk = options_.prefill_chunk,
                          .prompt_tokens_per_decode_step = options_.prompt_tokens_per_decode_step,
                          .experts = options_.experts,
                          .deficit = plan_.deficit,
                          .scored_rows = most_scored_rows(model_.vocab()),
                          .shares = shares};
  planner_.plan(waiting_views_, running_views_, limits, &plan_);
  const bool lack_memory = plan_.admit < static_cast<int64_t>(most);
  totals_.waiting_for_memory =
      lack_memory ? static_cast<int64_t>(waiting_.size()) - plan_.admit : 0;
  hold_back_host_rows();
  draft();
}

// Only one step in flight may return logits to the host (model/step_runner.h). While one does, the
// rows that would be the next wait for the step after this one.
void Engine::hold_back_host_rows() {
  if (!flights_.want_host_logits()) return;
  std::erase_if(plan_.rows, [this](const PlanRow& row) {
    const auto index = static_cast<size_t>(row.sequence);
    const Sequence& sequence =
        index < running_.size() ? *running_[index] : *waiting_[index - running_.size()];
    return row.is_scored || (row.wants_logits && sequence.needs_host());
  });
}

// Called when nothing can run. Sleeps until the bell rings or a deadline passes. If sequences wait
// for memory, all holders are parked or idle and only consumers can change that, so the wait is
// limited.
void Engine::wait_for_work() {
  publish_stats();
  wake_list_->ring_all();
  Clock::time_point end = next_deadline();
  if (!waiting_.empty() && !stalled_since_) stalled_since_ = options_.now();
  for (const std::unique_ptr<Sequence>& sequence : waiting_) {
    end = std::min(end, memory_wait_deadline(*sequence));
  }
  if (end == kNoDeadline) return bell_->wait();
  bell_->wait_for(end - options_.now());
  fail_starved();
}

Clock::time_point Engine::next_deadline() const {
  Clock::time_point nearest = kNoDeadline;
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    nearest = std::min(nearest, sequence->deadline);
  }
  for (const std::unique_ptr<Sequence>& sequence : waiting_) {
    nearest = std::min(nearest, sequence->deadline);
  }
  return nearest;
}

// A sequence that arrives during a stall gets the full timeout, too.
Clock::time_point Engine::memory_wait_deadline(const Sequence& sequence) const {
  return std::max(*stalled_since_, sequence.submitted) + kMemoryWaitTimeout;
}

// Called when nothing can run, so every running sequence is parked.
std::string Engine::describe_holders() const {
  const auto turns = std::count_if(running_.begin(), running_.end(), [](const auto& sequence) {
    return sequence->session != nullptr;
  });
  const int64_t idle = static_cast<int64_t>(sessions_.size()) - turns;
  const auto unread = static_cast<int64_t>(running_.size());
  std::string held;
  if (idle > 0) held = cat(idle, idle == 1 ? " idle session" : " idle sessions");
  if (idle > 0 && unread > 0) held += " and ";
  if (unread > 0) {
    held += cat(unread, unread == 1 ? " stream that is" : " streams that are", " not being read");
  }
  return held;
}

void Engine::fail_starved() {
  const Clock::time_point now = options_.now();
  std::erase_if(waiting_, [&](const std::unique_ptr<Sequence>& sequence) {
    // A cancelled or expired sequence ends for that reason in the next iteration, however late this
    // one runs.
    if (now < memory_wait_deadline(*sequence) || early_finish(*sequence, now)) return false;
    finish(*sequence, FinishReason::kError,
           std::make_exception_ptr(CapacityError(
               cat("stream: timed out waiting for cache memory: it is held by ", describe_holders(),
                   ". The cache has room for ", options_.max_sequences,
                   options_.max_sequences == 1 ? " sequence" : " sequences",
                   ". Read, close or cancel a stream, close a session, or load the model with "
                   "a larger `max_sequences`."))));
    return true;
  });
}

void Engine::update_page_stats() {
  totals_.free_pages = options_.pools.free().all_pages();
  totals_.shared_pages = options_.pools.shared().all_pages();
}

void Engine::publish_stats() {
  update_page_stats();
  recorder_.set_stats(totals_);
}

void Engine::record_phase(const Sequence& sequence, FinishReason reason) {
  const bool has_just_come = sequence.phase == Phase::kWaiting;
  recorder_.add_phase_change({.request = sequence.stream->request_id(),
                              .at = has_just_come ? sequence.submitted : options_.now(),
                              .phase = sequence.phase,
                              .reason = reason,
                              .prompt_tokens = sequence.prompt_tokens,
                              .generated_tokens = sequence.stats.generated_tokens});
}

// Ends all sequences, either as cancelled or with the error that `make_error` returns. No more
// requests can arrive. No consumer is left waiting, whatever fails here.
void Engine::finish_all(const std::function<std::exception_ptr()>& make_error) {
  count_arrivals(arrivals_);
  const auto finish_one = [&](const std::unique_ptr<Sequence>& sequence) {
    if (!sequence || sequence->phase == Phase::kFinished) return;
    std::exception_ptr error;
    try {
      error = make_error();
    } catch (...) {  // no memory for the message
      error = std::current_exception();
    }
    try {
      finish(*sequence, error ? FinishReason::kError : FinishReason::kCancelled, error);
    } catch (...) {
      sequence->stream->finish(FinishReason::kError, std::current_exception(), sequence->stats);
    }
  };
  std::for_each(running_.begin(), running_.end(), finish_one);
  std::for_each(waiting_.begin(), waiting_.end(), finish_one);
  std::for_each(arrived_.begin(), arrived_.end(), finish_one);
  std::for_each(arrivals_.begin(), arrivals_.end(), finish_one);
  running_.clear();
  waiting_.clear();
  arrived_.clear();
  arrivals_.clear();
  totals_.running = totals_.waiting = totals_.waiting_for_memory = totals_.parked = 0;
  publish_stats();
}

// The cache's contents are undefined now, so no sequence can continue.
void Engine::handle_fatal_error(const std::exception_ptr& cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    status_ = Status::kDead;
    fatal_error_ = describe(cause);
  }
  totals_.is_dead = true;
  finish_all([this] {
    return std::make_exception_ptr(
        EngineDead(cat("stream: the generation thread has stopped after a failure in step ",
                       flights_.current_step(), ": ", fatal_error_, " Load the model again.")));
  });
}

// Fails the jobs that callers queued too late.
void Engine::fail_jobs() {
  const std::lock_guard lock(mutex_);
  for (std::vector<Job*>* jobs : {&taken_jobs_, &jobs_}) {
    for (Job* job : *jobs) {
      try {
        check_open(job->where);
      } catch (...) {
        finish_job(job, std::current_exception());
      }
    }
    jobs->clear();
  }
}

}  // namespace sinkstream
