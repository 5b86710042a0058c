// Finds stop strings in text that arrives in pieces, and holds back text that may begin one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sampling/byte_pattern.h"
#include "sampling/call_finder.h"

namespace sinkstream {

// The match that ends first wins: it is known without generating further. Of several that end
// together, the longest wins, so that no part of any of them is shown. The result does not depend
// on how the text is cut into pieces. Memory is bounded by the stop strings, not by the text.
//
// In a tool call, stop strings do not match. Where a call may have begun, a match counts only once
// the text goes on as no call does, or ends.
class StopMatcher {
 public:
  // No stop string may be empty. Stop strings and each piece of text are valid UTF-8, and so is
  // each emitted piece. `calls`: none if the reply calls no tools.
  explicit StopMatcher(const std::vector<std::string>& stops, std::optional<CallTags> calls = {});

  // Adds a token of the reply, before the text that it completes.
  void feed_token(int32_t token, std::string* out);
  // Appends to `out` the text that can no longer belong to a stop string. Returns whether a stop
  // string is complete: then all text before it has been emitted, and nothing more will be.
  bool feed(std::string_view text, std::string* out);
  // At the end: appends the text that was held back. Returns whether a stop string is complete.
  bool flush(std::string* out);

  bool matched() const { return matched_; }
  int64_t held() const { return static_cast<int64_t>(held_.size()); }

 private:
  struct Match {
    size_t begin;  // in held_
    size_t end;
  };

  bool is_in_call() const { return calls_ && calls_->is_found(); }
  void show_held(std::string* out);
  bool take_match(std::string* out);

  std::vector<BytePattern> stops_;
  std::optional<CallFinder> calls_;
  std::string held_;            // what may be hidden: the longest prefix matched so far, or
  std::optional<Match> match_;  // the first match, and what follows it and may begin a call
  bool matched_ = false;
};

}  // namespace sinkstream
