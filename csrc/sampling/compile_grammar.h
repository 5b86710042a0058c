// Compiles a grammar within a deadline, once for all replies that follow it: a few lines of a
// grammar can take the library ten seconds, and nothing stops it.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "sampling/grammar.h"

namespace sinkstream {

// A grammar at the beginning of a reply. Any thread may call it.
class CompiledGrammar {
 public:
  explicit CompiledGrammar(std::unique_ptr<Grammar> at_start) : at_start_(std::move(at_start)) {}

  const std::string& option() const { return at_start_->option(); }

  // The state of one reply, which shares nothing with others.
  std::unique_ptr<Grammar> begin() const {
    const std::lock_guard lock(mutex_);
    return at_start_->clone();
  }

 private:
  mutable std::mutex mutex_;
  const std::unique_ptr<Grammar> at_start_;
};

constexpr std::chrono::milliseconds kCompileTimeout{2000};

// Any thread may call it. Compiles in a thread of its own, which goes on for a while after a
// timeout. Throws InvalidArgument if the source is not valid or takes more than `timeout` of a
// processor's time, and CapacityError if four others compile for that long.
std::shared_ptr<CompiledGrammar> compile_grammar(
    std::shared_ptr<const GrammarVocabulary> vocabulary, GrammarSource source,
    std::chrono::milliseconds timeout = kCompileTimeout);

}  // namespace sinkstream
