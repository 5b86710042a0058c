// One native thread that generates for everybody: plan → forward → sample → deliver; one step ahead
// of what it delivers where the model draws its tokens itself.
// It waits for no consumer and takes no lock of Python's; it sleeps only when there is nothing to
// do.
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
#include "model/device_sampler.h"
#include "model/language_model.h"

namespace sinkstream {

// What an engine works with. The pointers outlive it.
struct EngineOptions {
  PagePool* pool = nullptr;  // touched by the engine's thread only
  int64_t layers = 1;        // that each sequence holds pages of
  Window window;             // of a request that asks for no other
  int64_t max_sequences = 1;
  int64_t prefill_chunk = 1;  // no more than the model's max_tokens() has room for beside decoding
  int64_t prompt_tokens_per_decode_step = StepLimits().prompt_tokens_per_decode_step;
  const Kernels* kernels = nullptr;
  ThreadPool* threads = nullptr;
  std::shared_ptr<const TokenTable> tokens;  // null: ids only, no text
  std::vector<int32_t> end_token_ids;
  Clock::time_point (*now)() = &Clock::now;  // what all its times are taken from; tests move it
};

// Any thread may call its public functions, in the process that made it; in a forked child they
// throw ForkError, and the engine must not be destroyed there: it is left behind, with all it uses.
class Engine {
 public:
  Engine(LanguageModel& model, EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Checks the request and starts it. Throws InvalidArgument for a value that it cannot take,
  // CapacityError if it can never fit, EngineDead after a failed step. Never blocks for a step.
  std::shared_ptr<TokenStream> submit(Request request);

  // Sessions: conversations that keep their memory. All of these wait for the steps under way at
  // most, and throw EngineDead where there is no engine any more.

  // Takes the memory of a session at once, or throws CapacityError. What `prompt` has in common
  // with a live session of the same sinks and window is shared and counts as read: tokens() tells
  // how much.
  std::shared_ptr<Session> open_session(std::optional<int64_t> sinks,
                                        const std::vector<int32_t>& prompt);
  // The session's next turn: behind what it has in its cache. With max_tokens = 0 it only reads.
  // Throws what `submit` throws, InvalidArgument if the session is closed, and SessionBusy if a
  // turn is running; of a cancelled one it waits for the end.
  std::shared_ptr<TokenStream> submit(Request request, const std::shared_ptr<Session>& session);
  // A second session that goes on from the same tokens. Throws like open_session and submit.
  std::shared_ptr<Session> fork_session(Session& session);
  // Cancels the session's last turn if it is running, and makes the session what it was before.
  // Throws InvalidArgument if `turn` is not its last turn, or tokens have left the window since.
  void take_back(Session& session, const std::shared_ptr<TokenStream>& turn);
  // Calls `read` in this thread while nobody writes to the session; everybody else goes on.
  void read_session(Session& session, const std::function<void(const Session&)>& read);
  // A session that continues from `state`. `write` is called in this thread, to restore the keys
  // and values of a cache that has none; everybody else goes on.
  std::shared_ptr<Session> restore_session(int64_t sinks, const SessionState& state,
                                           const std::function<void(SequenceCache*)>& write);
  // The ids of the session's live tokens, in order; last, the reply's last one, which enters the
  // cache with the next turn.
  std::vector<int32_t> ids_of(Session& session);
  // The last one of them, if there is any. Throws SessionBusy while a turn is running.
  std::optional<int32_t> last_token(Session& session);

  // Runs `work` on the engine's thread between two steps, and waits for it: work may use the model,
  // the thread pool and the page pool. An exception of `work` is thrown here and harms nobody else.
  // Not to be called from `work`. `where` begins the sentence of an EngineDead or ForkError.
  void between_steps(const std::function<void()>& work, const char* where = "forward");

  // Ends all streams as cancelled, and the thread; waits for the steps under way. May be called
  // again. Does nothing in a forked child.
  void close();

  bool is_owner_process() const;
  // What it holds for its steps, beside the model and the pool; never grows.
  int64_t scratch_bytes() const {
    return static_cast<int64_t>(logits_.size() * sizeof(float)) + scratch_.bytes();
  }
  EngineStats stats() const;
  // The latest steps and phases of requests, as far as they are kept.
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

  // Callers' side.
  void check_open(const char* where) const;  // under mutex_
  Window window_of(const char* where, std::optional<int64_t> sinks) const;
  void check(const Request& request) const;
  void check_prompt(const std::vector<int32_t>& prompt) const;
  void check_text(const SamplingParams& params) const;
  void check_fits(const Sequence& sequence) const;
  std::shared_ptr<TokenStream> make_stream();
  void enqueue(std::unique_ptr<Sequence> sequence);
  void acquire_session(Session& session);

  // The thread: everything below, in the order of its life. engine.cc
  void run();
  bool take_arrivals();
  void count_arrivals(const std::vector<std::unique_ptr<Sequence>>& arrivals);
  void run_jobs();
  void finish_job(Job* job, std::exception_ptr failure);
  void finish_cancelled_and_expired();
  void unpark();
  void plan();
  void check_invariants() const;  // in tests; invariants.cc
  void wait_for_work();
  Clock::time_point next_deadline() const;
  void fail_starved();
  Clock::time_point memory_wait_deadline(const Sequence& sequence) const;
  void update_page_stats();
  void publish_stats();
  void record_phase(const Sequence& sequence, FinishReason reason = FinishReason::kStop);
  void finish_all(const std::function<std::exception_ptr()>& make_error);
  void handle_fatal_error(const std::exception_ptr& cause) noexcept;
  void fail_jobs();

  // Sessions, as the thread sees them. engine_sessions.cc
  struct SharedPrefix {
    const Session* session = nullptr;  // null: there is none
    int64_t count = 0;                 // of its first tokens
    int64_t saved_pages = 0;           // that whoever begins so need not take
  };
  SharedPrefix shared_prefix_with(const Session* session, int64_t count) const;
  SharedPrefix longest_shared_prefix(const Window& window, std::span<const int32_t> prompt) const;
  SharedPrefix shared_prefix_of(const Sequence& sequence) const;
  void make_cache(std::optional<SequenceCache>* cache, const Window& window, int64_t max_length,
                  const SharedPrefix& shared);
  void add_session(const std::shared_ptr<Session>& session, const SharedPrefix& shared);
  void finish_turn(Sequence& sequence);
  void remove_closed_sessions();
  void remove_all_sessions();

  // One step of it, in its order. engine_step.cc
  void run_step();
  void admit();
  void attach_cache(Sequence& sequence, const SharedPrefix& shared);
  void count_progress(int64_t count, Sequence& sequence, StepRecord* record);
  Sampled sample(const Sequence& sequence, const float* logits);
  void take_token(Sequence& sequence, const Sampled& sampled);
  void record_token_time(Sequence& sequence);
  void stage_token(Sequence& sequence, const Sampled& sampled);
  void publish(Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, std::exception_ptr error = nullptr);
  void remove_finished();
  void record_step(StepRecord* record);

  // Its way to the model and back. engine_flight.cc
  void take_seat(Sequence& sequence);
  void release_seat(Sequence& sequence);
  void launch(Flight& flight);
  void forward(const Flight& flight);
  void launch_with_sampling(const Flight& flight);
  SampledStep await(const Flight& flight);
  void deliver();
  void deliver_row(FlightRow row, const SampledToken* token, const float* logits,
                   StepRecord* record);
  void deliver_all();

  LanguageModel& model_;
  DeviceSampler* const device_sampler_;  // the model's; null: tokens are drawn here
  const EngineOptions options_;
  const TokenSet end_tokens_;
  const OwnerProcess owner_;
  const std::shared_ptr<Doorbell> bell_ = std::make_shared<Doorbell>();
  const std::shared_ptr<WakeList> wake_list_ = std::make_shared<WakeList>();

  // What callers hand over.
  mutable std::mutex mutex_;  // guards what follows; jobs are their callers' own
  Status status_ = Status::kOpen;
  std::string fatal_error_;
  std::vector<std::unique_ptr<Sequence>> arrivals_;
  std::vector<Job*> jobs_;
  std::condition_variable job_done_;

  // The thread's own.
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<std::unique_ptr<Sequence>> arrived_;  // swapped with arrivals_
  std::vector<Job*> taken_jobs_;                    // swapped with jobs_
  std::vector<std::shared_ptr<Session>> sessions_;  // that have pages
  StepPlanner planner_;
  std::vector<WaitingView> waiting_views_;
  std::vector<SharedPrefix> shared_prefixes_;  // of waiting_views_
  std::vector<RunningView> running_views_;
  StepPlan plan_;
  Flights flights_;
  std::vector<int64_t> free_seats_;       // of the drawer, where there is one
  std::vector<ForwardSpan> spans_;        // of the step that is being launched
  std::vector<SampleSpan> sample_spans_;  // the same, for the drawer
  std::vector<float> logits_;             // [max_sequences, vocab], where there is no drawer
  SamplerScratch scratch_;                // for one row
  std::optional<Clock::time_point> stalled_since_;  // sequences wait, and nobody runs
  EngineStats totals_;

  // What anybody may look at.
  Recorder recorder_;
  std::atomic<int64_t> requests_{0};  // numbers given out
  const std::shared_ptr<TokenStream::Gauge> lag_ = std::make_shared<TokenStream::Gauge>(0);

  std::mutex join_mutex_;  // guards thread_
  std::thread thread_;     // last: it uses everything above
};

}  // namespace sinkstream
