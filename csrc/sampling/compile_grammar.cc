#include "sampling/compile_grammar.h"

#include <condition_variable>
#include <future>
#include <mutex>
#include <utility>

#include "common/check.h"
#include "common/errors.h"
#include "common/quiet_thread.h"

namespace sinkstream {

namespace {

// How many grammars compile at the same time.
class Seats {
 public:
  bool try_take_until(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [this] { return free_ > 0; })) return false;
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

// Never destroyed: a thread that nobody waits for uses it until the process ends.
Seats& seats() {
  static Seats& all = *new Seats();
  return all;
}

CapacityError no_seat(const std::string& option) {
  return CapacityError(cat("stream: `", option,
                           "` must be compiled, but other grammars are still compiling. Try again "
                           "in some seconds."));
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
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const std::string option = source.option;
  if (!seats().try_take_until(deadline)) throw no_seat(option);
  // A std::function must be copyable, so the promise is shared.
  const auto kept = std::make_shared<std::promise<std::unique_ptr<Grammar>>>();
  std::future<std::unique_ptr<Grammar>> compiled = kept->get_future();
  try {
    start_quiet_thread("grammar", [kept, vocabulary = std::move(vocabulary),
                                   source = std::move(source)]() mutable {
      try {
        kept->set_value(std::make_unique<Grammar>(std::move(vocabulary), std::move(source)));
      } catch (...) {
        kept->set_exception(std::current_exception());
      }
      seats().give_back();
    }).detach();
  } catch (...) {
    seats().give_back();
    throw;
  }
  if (compiled.wait_until(deadline) != std::future_status::ready) throw too_slow(option, timeout);
  return std::make_shared<CompiledGrammar>(compiled.get());
}

}  // namespace sinkstream
