// One native thread that generates for everybody: plan → forward → sample → deliver.
// It waits for no consumer and takes no lock of Python's; it sleeps only when there is nothing to
// do.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine_stats.h"
#include "engine/sequence.h"
#include "engine/step.h"
#include "model/language_model.h"

namespace sinkstream {

// What an engine works with. The pointers outlive it.
struct EngineOptions {
  PagePool* pool = nullptr;  // touched by the engine's thread only
  int64_t layers = 1;        // that each sequence holds pages of
  Window window;             // of a request that asks for no other
  int64_t max_sequences = 1;
  int64_t prefill_chunk = 1;  // no more than the model's max_tokens() has room for beside decoding
  const Kernels* kernels = nullptr;
  ThreadPool* threads = nullptr;
  std::shared_ptr<const TokenTable> tokens;  // null: ids only, no text
  std::vector<int32_t> end_token_ids;
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

  // Runs `work` on the engine's thread between two steps, and waits for it: work may use the model,
  // the thread pool and the page pool. An exception of `work` is thrown here and harms nobody else.
  // Not to be called from `work`.
  void between_steps(const std::function<void()>& work);

  // Ends all streams as cancelled, and the thread; waits for the step in progress. May be called
  // again. Does nothing in a forked child.
  void close();

  bool is_owner_process() const;
  EngineStats stats() const;
  double step_quantile_s(double q) const { return step_times_.quantile_s(q); }
  std::vector<StepRecord> steps_since(int64_t step) const;

 private:
  enum class Life : uint8_t { kOpen, kClosed, kDead };

  struct Job {
    const std::function<void()>* work = nullptr;
    bool is_done = false;
    std::exception_ptr failure;
  };

  // Callers' side.
  void check_process(const char* where) const;
  void check_open(const char* where) const;  // under mutex_
  Window window_of(const Request& request) const;
  void check_prompt(const std::vector<int32_t>& prompt) const;
  void check_text(const SamplingParams& params) const;
  void check_fits(const Sequence& sequence) const;

  // The thread: everything below, in the order of its life. engine.cc
  void run();
  bool collect();
  void run_jobs();
  void finish_job(Job* job, std::exception_ptr failure);
  void end_early();
  void unpark();
  void plan();
  void check_invariants() const;  // in tests; invariants.cc
  void rest();
  void refuse_waiting();
  Clock::time_point end_of_patience(const Sequence& sequence) const;
  void share_stats();
  void end_all(const std::function<std::exception_ptr()>& make_error);
  void die(const std::exception_ptr& cause) noexcept;
  void refuse_jobs();

  // One step of it, in its order. engine_step.cc
  void act();
  void admit();
  void forward();
  void deliver();
  void deliver_row(const PlanRow& row, Sequence& sequence, const float* logits);
  void account(const PlanRow& row, Sequence& sequence);
  void sample(Sequence& sequence, const float* logits);
  void time_token(Sequence& sequence);
  void take_token(Sequence& sequence, const Sampled& sampled);
  void publish(Sequence& sequence);
  void end(Sequence& sequence, FinishReason reason, std::exception_ptr error = nullptr);
  void forget_ended();
  void record_step();

  LanguageModel& model_;
  const EngineOptions options_;
  const TokenSet end_tokens_;
  const pid_t owner_;
  const std::shared_ptr<Doorbell> bell_ = std::make_shared<Doorbell>();

  // What callers hand over.
  mutable std::mutex mutex_;  // guards what follows; jobs are their callers' own
  Life life_ = Life::kOpen;
  std::string cause_of_death_;
  std::vector<std::unique_ptr<Sequence>> arrivals_;
  std::vector<Job*> jobs_;
  std::condition_variable job_done_;

  // The thread's own.
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<std::unique_ptr<Sequence>> arrived_;  // swapped with arrivals_
  std::vector<Job*> taken_jobs_;                    // swapped with jobs_
  StepPlanner planner_;
  std::vector<WaitingView> waiting_views_;
  std::vector<RunningView> running_views_;
  StepPlan plan_;
  std::vector<ForwardSpan> spans_;
  std::vector<float> logits_;  // [max_sequences, vocab]
  SamplerScratch scratch_;
  std::optional<Clock::time_point> stuck_since_;  // sequences wait, and nobody runs
  StepRecord step_;                               // the one in progress
  EngineStats totals_;

  // What anybody may look at.
  mutable std::mutex stats_mutex_;  // guards the next two
  EngineStats stats_;               // a copy of totals_
  StepLog log_;
  Histogram step_times_;

  std::mutex join_mutex_;  // guards thread_
  std::thread thread_;     // last: it uses everything above
};

}  // namespace sinkstream
