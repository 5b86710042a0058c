// One native thread that generates for all streams: plan → launch → await → deliver. Where the
// runner samples, it launches one step ahead of what it delivers. It never waits for a consumer,
// never takes the GIL, and sleeps only when there is nothing to do.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/owner_process.h"
#include "engine/flight.h"
#include "engine/recorder.h"
#include "engine/sequence.h"
#include "engine/step_planner.h"
#include "model/host_runner.h"
#include "model/language_model.h"
#include "model/step_runner.h"

namespace sinkstream {

// What an engine works with. The pointers must outlive it.
struct EngineOptions {
  MemoryPools pools;       // used only by the engine's thread
  CacheLayers layers = 1;  // what each sequence holds in every layer
  Window window;           // for requests that set no `sinks`
  int64_t max_sequences = 1;
  int64_t prefill_chunk = 1;  // reduced to fit in max_tokens() with the decode tokens
  int64_t prompt_tokens_per_decode_step = StepLimits().prompt_tokens_per_decode_step;
  ExpertReads experts = {};
  const Kernels* kernels = nullptr;
  ThreadPool* threads = nullptr;
  std::shared_ptr<const TokenTable> tokens;  // null: ids only, no text
  std::vector<int32_t> end_token_ids;
  // None: as many drafts as make tokens come faster, where the host samples. 0: no drafts, and no
  // memory for them. Else: all guesses, up to this number for each row.
  std::optional<int64_t> speculation = {};
  int64_t ngram_entries = kNgramEntries;
  Clock::time_point (*now)() = &Clock::now;  // the engine's clock; tests replace it
};

// Any thread may call the public functions, in the process that created the engine. In a forked
// child they throw ForkError, and the engine and all it uses must be leaked, not destroyed.
class Engine {
 public:
  Engine(LanguageModel& model, EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Validates the request and queues it. Throws InvalidArgument for a value out of range,
  // CapacityError if it can never fit, EngineDead after a failed step. Never waits for a step.
  std::shared_ptr<TokenStream> submit(Request request);

  // Sessions: conversations that keep their cache. These calls wait at most for the steps in
  // flight, and throw EngineDead once the engine has closed or failed.

  // Allocates all of a session's memory up front, or throws CapacityError. If a live session with
  // the same sinks and window has cached a prefix of `prompt`, that prefix is shared and counts as
  // prefilled: stats().tokens is its length. `cache_salt`: see Request.
  std::shared_ptr<Session> open_session(std::optional<int64_t> sinks,
                                        const std::vector<int32_t>& prompt,
                                        std::string cache_salt = {});
  // Queues the session's next turn, which continues from its cache. With max_tokens = 0 it only
  // prefills; then the prompt may be empty if there are tokens to read again: it reads only these.
  // Throws what `submit` throws, InvalidArgument if the session is closed, and SessionBusy if a
  // turn is running; waits for a cancelled turn to end.
  std::shared_ptr<TokenStream> submit(Request request, const std::shared_ptr<Session>& session);
  // A second session that continues from the same tokens. Throws like open_session and submit.
  std::shared_ptr<Session> fork_session(Session& session);
  // Where the session is. Throws SessionBusy while a turn is running.
  SessionPosition position_of(Session& session);
  // Returns the session to where it was before a turn, or an earlier one. If tokens have left the
  // window since, the next turn reads again what the cache no longer has: Note [Tokens to read
  // again] of session.h. Returns false, and does nothing, if that is not wanted, or if the ids are
  // not kept any more. Throws SessionBusy while a turn is running, and waits for a cancelled one.
  bool go_back(Session& session, const SessionPosition& to, bool reads_again);
  // Calls `read` in this thread while no other thread uses the session; other streams continue.
  void read_session(Session& session, const std::function<void(const Session&)>& read);
  // A session that continues from `state`. Calls `write` in this thread to fill an empty cache with
  // keys and values; other streams continue.
  std::shared_ptr<Session> restore_session(int64_t sinks, const SessionState& state,
                                           const std::function<void(SequenceCache*)>& write,
                                           std::string cache_salt = {});
  // The ids of the session's live tokens, in order, then its pending token if there is one. With
  // `kept`, the sinks and all of the last tokens whose ids are still there.
  std::vector<int32_t> ids_of(Session& session, bool kept = false);
  // The last of those ids, if there is one. Throws SessionBusy while a turn is running.
  std::optional<int32_t> last_token(Session& session);

  // Runs `work` on the engine's thread between two steps, and waits for it. `work` may use the
  // model, the thread pool and the page pool, but must not call this function. Rethrows what it
  // throws; no stream is affected. `where` is the prefix of an EngineDead or ForkError message.
  void between_steps(const std::function<void()>& work, const char* where = "forward");

  // Ends all streams as cancelled and stops the thread; waits for the steps in flight. Idempotent.
  // Does nothing in a forked child.
  void close();

  bool is_owner_process() const;
  // Memory for its steps, excluding the model and the pool; constant.
  int64_t scratch_bytes() const {
    return scratch_.bytes() + ngrams_.bytes() + (host_runner_ ? host_runner_->bytes() : 0);
  }
  EngineStats stats() const;
  // The latest steps and phase changes that are still kept.
  std::vector<StepRecord> steps_since(int64_t step) const;
  Recorder::PhaseChanges phase_changes_since(int64_t number) const;

 private:
  enum class Status : uint8_t { kOpen, kClosed, kDead };

  struct Job {
    const char* where = "";
    const std::function<void()>* work = nullptr;
    bool is_done = false;
    std::exception_ptr failure;
  };

  // For callers.
  void check_open(const char* where) const;  // requires mutex_
  Window window_of(const char* where, std::optional<int64_t> sinks) const;
  void check(const Request& request) const;
  void check_prompt(const std::vector<int32_t>& prompt) const;
  void check_text(const SamplingParams& params) const;
  void check_grammar(const Request& request) const;
  void check_fits(const Sequence& sequence) const;
  std::shared_ptr<TokenStream> make_stream();
  void enqueue(std::unique_ptr<Sequence> sequence);
  void acquire_session(Session& session);
  std::shared_ptr<Session> make_session(const Window& window, std::string cache_salt) const;

  // The engine's thread runs everything below. Its main loop: engine.cc
  void run();
  bool take_arrivals();
  void count_arrivals(const std::vector<std::unique_ptr<Sequence>>& arrivals);
  void run_jobs();
  void finish_job(Job* job, std::exception_ptr failure);
  void finish_cancelled_and_expired();
  void unpark();
  void plan();
  void draft();
  bool may_guess() const;
  int64_t most_in_flight() const;
  int64_t most_drafts(const Sequence& sequence) const;
  bool guess(Sequence& sequence, int64_t most);
  void order_waiting(std::span<const ShareView> shares, size_t most);
  void hold_back_host_rows();
  void check_invariants() const;  // test builds only; invariants.cc
  void wait_for_work();
  Clock::time_point next_deadline() const;
  std::string describe_holders() const;
  void fail_starved();
  Clock::time_point memory_wait_deadline(const Sequence& sequence) const;
  void update_page_stats();
  void publish_stats();
  void record_phase(const Sequence& sequence, FinishReason reason = FinishReason::kStop);
  void finish_all(const std::function<std::exception_ptr()>& make_error);
  void handle_fatal_error(const std::exception_ptr& cause) noexcept;
  void fail_jobs();

  // The thread's side of sessions: engine_sessions.cc
  struct SharedPrefix {
    const Session* session = nullptr;  // null: nothing to share
    int64_t count = 0;                 // tokens shared
    MemoryAmount saved;                // memory that does not have to be allocated
  };
  SharedPrefix shared_prefix_with(const Session* session, int64_t count) const;
  SharedPrefix longest_shared_prefix(const Window& window, const std::string& cache_salt,
                                     std::span<const int32_t> prompt) const;
  SharedPrefix shared_prefix_of(const Sequence& sequence) const;
  void make_cache(std::optional<SequenceCache>* cache, const Window& window, int64_t max_length,
                  const SharedPrefix& shared);
  void add_session(const std::shared_ptr<Session>& session, const SharedPrefix& shared);
  bool rewind(Session& session, int64_t length);
  bool restart(Session& session, int64_t length);
  void finish_turn(Sequence& sequence);
  void remove_closed_sessions();
  void remove_all_sessions();

  // One step, in order: engine_step.cc
  void run_step();
  void admit();
  void attach_cache(Sequence& sequence, const SharedPrefix& shared);
  void count_progress(int64_t count, Sequence& sequence, StepRecord* record);
  void end_prompt(Sequence& sequence);
  void score_prompt(const Sequence& sequence, int64_t count, const float* logits);
  Sampled sample(const Sequence& sequence, const float* logits);
  void take_token(Sequence& sequence, const Sampled& sampled);
  void record_token_time(Sequence& sequence);
  void stage_token(Sequence& sequence, const Sampled& sampled);
  void publish(Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, std::exception_ptr error = nullptr);
  void remove_finished();
  void record_step(StepRecord* record);

  // A step's launch and delivery: engine_flight.cc
  void take_seat(Sequence& sequence);
  void drop_in_flight(Sequence& sequence);
  void launch(Flight& flight);
  void launch_rows(const Flight& flight);
  void prepare_masks(const Flight& flight);
  StepResult await(const Flight& flight);
  void deliver();
  void deliver_row(FlightRow row, const StepResult& result, StepRecord* record);
  void take_samples(const FlightRow& row, const StepResult& result, Sequence& sequence,
                    StepRecord* record);
  void learn_price(const Flight& flight);
  void deliver_all();

  LanguageModel& model_;
  std::optional<HostRunner> host_runner_;  // for a model without a runner of its own
  StepRunner& runner_;
  const EngineOptions options_;
  const TokenSet end_tokens_;
  const OwnerProcess owner_;
  const std::shared_ptr<Doorbell> bell_ = std::make_shared<Doorbell>();
  const std::shared_ptr<WakeList> wake_list_ = std::make_shared<WakeList>();

  // Queued by callers.
  mutable std::mutex mutex_;  // guards the members below; a Job belongs to its caller
  Status status_ = Status::kOpen;
  std::string fatal_error_;
  std::vector<std::unique_ptr<Sequence>> arrivals_;
  std::vector<Job*> jobs_;
  std::condition_variable job_done_;

  // Owned by the engine's thread.
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<std::unique_ptr<Sequence>> arrived_;  // swapped with arrivals_
  std::vector<Job*> taken_jobs_;                    // swapped with jobs_
  std::vector<std::shared_ptr<Session>> sessions_;  // those with pages
  Shares shares_;
  StepPlanner planner_;
  std::vector<Candidate> candidates_;  // one for each of waiting_
  std::vector<ShareView> turns_;       // while the order is decided
  std::vector<WaitingView> waiting_views_;
  std::vector<SharedPrefix> shared_prefixes_;  // one for each of waiting_views_
  std::vector<RunningView> running_views_;
  StepPlan plan_;
  Flights flights_;
  std::vector<int64_t> free_seats_;    // of the runner
  std::vector<StepSpan> spans_;        // of the step being launched
  std::vector<Grammar*> constrained_;  // of the step being launched
  SamplerScratch scratch_;             // for one row
  NgramPool ngrams_;
  StepPrices prices_;
  Acceptance acceptance_;
  std::vector<PlanRow*> drafting_;                  // of the plan, those with guesses
  int64_t drafted_steps_ = 0;                       // since the last one without drafts
  std::optional<Clock::time_point> stalled_since_;  // set while sequences wait and none can run
  EngineStats totals_;

  // Readable from any thread.
  Recorder recorder_;
  std::atomic<int64_t> requests_{0};  // numbers assigned so far
  std::atomic<int64_t> enqueued_{0};  // requests put into arrivals_ so far
  const std::shared_ptr<TokenStream::Gauge> lag_ = std::make_shared<TokenStream::Gauge>(0);

  std::mutex join_mutex_;  // guards thread_
  std::thread thread_;     // last: it uses everything above
};

}  // namespace sinkstream
