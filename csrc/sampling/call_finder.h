// Finds where the tool calls of a reply begin. It knows neither the tools nor what a call contains:
// a reply is a thought, if it has one, then text, then calls up to its end.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sampling/byte_pattern.h"

namespace sinkstream {

// The tags of a model. A control token, which has no text, is in a tag by its marker: bytes that no
// text contains.
struct CallTags {
  std::string call_begin = {};     // what the first call begins with
  bool is_first = false;           // calls only begin a reply, or what follows its thought
  std::string thought_begin = {};  // empty: the reply begins no thought
  std::string thought_end = {};    // empty: replies have no thoughts
  bool is_in_thought = false;      // where the reply begins
  std::vector<std::pair<int32_t, std::string>> markers = {};  // of the control tokens in the tags
};

class CallFinder {
 public:
  explicit CallFinder(CallTags tags);

  // Adds a byte of the reply's text.
  void feed(char byte);
  // Adds a token of the reply, before the text that it completes. Only control tokens count.
  void feed_token(int32_t token);

  // Whether the calls have begun. All that follows belongs to them.
  bool is_found() const { return state_ == State::kCalls; }
  // How many of the last bytes may be the beginning of the first call.
  int64_t begun() const;

 private:
  enum class State {
    kStart,  // white space, and then perhaps a part of the tag that begins a thought
    kThought,
    kText,
    kCalls,
  };
  // A string that can only follow white space.
  struct AtStart {
    std::string bytes;
    int64_t spaces = 0;
    int64_t length = 0;  // of its prefix that has been read
    bool differs = false;

    bool feed(char byte);
  };

  bool feed_call(char byte);

  State state_;
  const bool is_first_;
  BytePattern call_begin_;
  AtStart first_call_;  // the same string
  AtStart thought_begin_;
  BytePattern thought_end_;
  std::vector<std::pair<int32_t, std::string>> markers_;
};

}  // namespace sinkstream
