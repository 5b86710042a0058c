// A grammar library for tests: the real one needs Python. A source is a list of steps, separated by
// bars: "5 6|7|8 $" allows token 5 or 6, then 7, then 8 or an end token. "*" allows every token.
// After the last step the reply is complete, unless that is "..", which repeats the one before it.
// Other words stand for faults: "invalid", "slow" (to compile), "waits" (for
// a processor, while it compiles), "broken" (its mask fails), "stuck"
// (it refuses every token), "nothing" (it allows none).
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "sampling/compile_grammar.h"

namespace sinkstream {

struct GrammarLibrary::Tokenizer {
  uint32_t vocab = 0;
  std::vector<uint32_t> ends;
  std::vector<std::string> tokens;
};

struct GrammarLibrary::Matcher {
  static inline std::atomic<int> alive{0};

  const Tokenizer* tokenizer = nullptr;
  std::string kind;
  std::vector<std::vector<std::string>> steps;  // words
  size_t at = 0;
  bool has_ended = false;
  std::string error;

  bool is_end(uint32_t token) const {
    const auto& ends = tokenizer->ends;
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }
  const std::vector<std::string>& step() const {
    return steps.at(steps[at][0] == ".." ? at - 1 : at);
  }
  bool allows(uint32_t token) const {
    for (const std::string& word : step()) {
      if (word == "*" || word == "stuck") return true;
      if (word == "$" ? is_end(token) : word == std::to_string(token)) return true;
    }
    return false;
  }
};

// The time of this thread on a processor.
inline std::chrono::nanoseconds computed_by_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

inline GrammarLibrary fake_grammar_library() {
  using Tokenizer = GrammarLibrary::Tokenizer;
  using Matcher = GrammarLibrary::Matcher;
  GrammarLibrary library;
  library.version = [] { return "fake@1.9.0"; };
  library.new_tokenizer = [](const GrammarLibrary::TokenizerInit* init, char* error, size_t size) {
    if (init->vocab == 3) {
      std::strncpy(error, "three is no vocabulary.\nMore.", size);
      return static_cast<Tokenizer*>(nullptr);
    }
    auto* made = new Tokenizer{.vocab = init->vocab, .ends = {}, .tokens = {}};
    if (init->end_token != GrammarLibrary::kNoToken) made->ends.push_back(init->end_token);
    made->ends.insert(made->ends.end(), init->more_end_tokens,
                      init->more_end_tokens + init->more_end_token_count);
    const auto* bytes = reinterpret_cast<const char*>(init->token_bytes);
    for (uint32_t id = 0; id < init->vocab; bytes += init->token_lengths[id++]) {
      made->tokens.emplace_back(bytes, init->token_lengths[id]);
    }
    return made;
  };
  library.free_tokenizer = [](Tokenizer* tokenizer) { delete tokenizer; };
  library.new_matcher = [](const GrammarLibrary::MatcherInit* init, const char* kind,
                           const char* source) {
    ++Matcher::alive;
    auto* made = new Matcher{.tokenizer = init->tokenizer, .kind = kind, .steps = {}, .error = {}};
    std::istringstream all(source);
    for (std::string text; std::getline(all, text, '|');) {
      std::istringstream one(text);
      made->steps.emplace_back();
      for (std::string word; one >> word;) made->steps.back().push_back(word);
    }
    const std::string first = made->steps.at(0).at(0);
    if (first == "invalid") made->error = "regex parse error:\n  (\nerror: unclosed group.\n";
    if (first == "waits") std::this_thread::sleep_for(std::chrono::milliseconds(50));
    while (first == "slow" && computed_by_thread() < std::chrono::milliseconds(100)) {
    }
    return made;
  };
  library.clone_matcher = [](const Matcher* matcher) {
    ++Matcher::alive;
    return new Matcher(*matcher);
  };
  library.free_matcher = [](Matcher* matcher) {
    delete matcher;
    --Matcher::alive;
  };
  library.error = [](Matcher* matcher) -> const char* {
    return matcher->error.empty() ? nullptr : matcher->error.c_str();
  };
  library.mask_bytes = [](const Matcher* matcher) -> size_t {
    return (matcher->tokenizer->vocab + 31) / 32 * 4;
  };
  library.compute_mask = [](Matcher* matcher, uint32_t* mask, size_t bytes) -> int32_t {
    std::memset(mask, 0, bytes);
    if (matcher->step()[0] == "broken") {
      matcher->error = "too many items";
      return -1;
    }
    for (uint32_t token = 0; token < matcher->tokenizer->vocab; ++token) {
      if (matcher->allows(token)) mask[token / 32] |= uint32_t{1} << token % 32;
    }
    return 0;
  };
  library.consume = [](Matcher* matcher, uint32_t token) -> int32_t {
    if (matcher->step()[0] == "stuck" || !matcher->allows(token)) {
      matcher->error = "no such token";
      return -1;
    }
    if (matcher->is_end(token) && matcher->step().back() == "$") matcher->has_ended = true;
    if (matcher->steps[matcher->at][0] != "..") ++matcher->at;
    return 0;
  };
  library.is_stopped = [](const Matcher* matcher) {
    return matcher->has_ended || matcher->at == matcher->steps.size();
  };
  return library;
}

}  // namespace sinkstream
