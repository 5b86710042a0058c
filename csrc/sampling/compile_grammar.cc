#include "sampling/compile_grammar.h"

#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <utility>

#include "common/check.h"
#include "common/errors.h"
#include "common/quiet_thread.h"

namespace sinkstream {

namespace {

// The library recurses as deeply as a grammar refers to further rules, which kMaxGrammarBytes
// limits.
constexpr size_t kStackBytes = size_t{256} << 20;
constexpr int kLowestPriority = 19;

// How many grammars compile at the same time.
class Seats {
 public:
  bool try_take_for(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [this] { return free_ > 0; })) return false;
    --free_;
    return true;
  }
  void give_back() {
    const std::lock_guard lock(mutex_);
    ++free_;
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int free_ = 4;
};

// Never destroyed: a thread whose caller has given up uses it until the process ends.
Seats& seats() {
  static Seats& all = *new Seats();
  return all;
}

CapacityError no_seat(const std::string& option) {
  return CapacityError(cat("stream: `", option,
                           "` cannot be compiled yet: other grammars are still being compiled. "
                           "Try again in a few seconds."));
}

// What the thread and its caller share.
struct Compiling {
  std::promise<std::unique_ptr<Grammar>> result;
  clockid_t clock = 0;           // of the thread's time on a processor, once it has begun
  std::atomic<pid_t> thread{0};  // 0: it has not begun

  void begin() {
    pthread_getcpuclockid(pthread_self(), &clock);
    thread = gettid();
  }
  std::chrono::nanoseconds computed() const {
    timespec time{};
    // It fails once the thread has ended: then the result is there.
    if (thread == 0 || clock_gettime(clock, &time) != 0) return {};
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }
};

void compile(std::shared_ptr<const GrammarVocabulary> vocabulary, GrammarSource source,
             Compiling* compiling) {
  try {
    compiling->result.set_value(
        std::make_unique<Grammar>(std::move(vocabulary), std::move(source)));
  } catch (...) {
    compiling->result.set_exception(std::current_exception());
  }
}

InvalidArgument too_slow(const std::string& option, std::chrono::milliseconds timeout) {
  return InvalidArgument(
      cat("stream: `", option, "` must be simple enough to compile within ",
          static_cast<double>(timeout.count()) / 1000, " s, but is not. Use a simpler one."),
      option);
}

}  // namespace

std::shared_ptr<CompiledGrammar> compile_grammar(
    std::shared_ptr<const GrammarVocabulary> vocabulary, GrammarSource source,
    std::chrono::milliseconds timeout) {
  const std::string option = source.option;
  if (!seats().try_take_for(timeout)) throw no_seat(option);
  const auto compiling = std::make_shared<Compiling>();
  auto compiled = compiling->result.get_future();
  try {
    start_detached_thread(
        "grammar", kStackBytes,
        [compiling, vocabulary = std::move(vocabulary), source = std::move(source)]() mutable {
          compiling->begin();
          compile(std::move(vocabulary), std::move(source), compiling.get());
          seats().give_back();
        });
  } catch (...) {
    seats().give_back();
    throw;
  }
  // Whether a grammar is too slow must not depend on what else the processors do.
  for (std::chrono::nanoseconds left = timeout;
       compiled.wait_for(left) != std::future_status::ready;) {
    left = timeout - compiling->computed();
    if (left.count() > 0) continue;
    // It must not take processors from those that still have a reader.
    setpriority(PRIO_PROCESS, static_cast<id_t>(compiling->thread.load()), kLowestPriority);
    throw too_slow(option, timeout);
  }
  return std::make_shared<CompiledGrammar>(compiled.get());
}

}  // namespace sinkstream
