// A pool of threads that runs one parallel loop at a time. Workers spin briefly for the next loop,
// then park. Knows nothing about what the loops compute.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace sinkstream {

class ThreadPool {
 public:
  // `threads` in [1, kMaxThreads] counts the caller of `run`, so one thread means no workers.
  // Every thread, the caller included, runs tasks with denormals flushed to zero, because kernels
  // must give the same bits on any thread. Throws CapacityError if the system refuses a thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  static constexpr int kMaxThreads = 1024;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls `body(task, thread)` once for each task in [0, tasks), with thread in [0, threads()), and
  // returns when all calls have returned. A thread starts with a run of consecutive tasks, so that
  // it reads memory in order, and then helps the others. Which thread runs a task varies, so a task
  // must write only its own outputs and use `thread` only to find scratch memory. One caller at a
  // time. The first exception of a task is rethrown here after the loop.
  template <typename Body>
  void run(int64_t tasks, const Body& body) {
    run_erased(tasks, Loop::of(body));
  }

  // The same, but each thread that gets a task calls `begin(thread)` before its first one. If
  // `begin` throws, its thread runs no task, and the exception is rethrown likewise.
  template <typename Begin, typename Body>
  void run(int64_t tasks, const Begin& begin, const Body& body) {
    Loop loop = Loop::of(body);
    loop.begin = &begin;
    loop.call_begin = [](const void* erased, int thread) {
      (*static_cast<const Begin*>(erased))(thread);
    };
    run_erased(tasks, loop);
  }

  // Lets other threads that wait for one of the pool's cores run first, once. For the caller of
  // `run`, between loops: it yields its core here, and each worker yields before its next task.
  void offer_cores();

 private:
  // A loop with the types of its functions erased.
  struct Loop {
    const void* body = nullptr;
    void (*call_body)(const void* body, int64_t task, int thread) = nullptr;
    const void* begin = nullptr;
    void (*call_begin)(const void* begin, int thread) = nullptr;  // may be null

    template <typename Body>
    static Loop of(const Body& body) {
      return {&body, [](const void* erased, int64_t task, int thread) {
                (*static_cast<const Body*>(erased))(task, thread);
              }};
    }
  };

  void run_erased(int64_t tasks, const Loop& loop);
  void take_tasks(int thread);
  void take_offer(uint32_t* seen);
  void work(int thread);
  void stop();

  std::vector<std::thread> workers_;

  // The loop in progress. Written by the caller before it increments `generation_`, read by workers
  // after.
  Loop loop_;

  // The tasks that a thread starts with: [next, end).
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Share> shares_;  // [threads()]

  alignas(64) std::atomic<uint32_t> generation_{0};  // counts loops, plus one for the end
  std::atomic<uint32_t> offers_{0};                  // counts calls to offer_cores()
  alignas(64) std::atomic<int> busy_{0};             // workers that have not finished the loop
  std::atomic<int> parked_{0};
  std::atomic<bool> stopping_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

}  // namespace sinkstream
