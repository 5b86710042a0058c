// Finds stop strings in text that arrives in pieces, and holds back text that may begin one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sinkstream {

// The match that ends first wins: it is known without generating further. Of several that end
// together, the longest wins, so that no part of any of them is shown. The result does not depend
// on how the text is cut into pieces. Memory is bounded by the stop strings, not by the text.
class StopMatcher {
 public:
  // No stop string may be empty. Stop strings and each piece of text are valid UTF-8, and so is
  // each emitted piece.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Appends to `out` the text that can no longer belong to a stop string. Returns whether a stop
  // string is complete: then all text before it has been emitted, and nothing more will be.
  bool feed(std::string_view text, std::string* out);
  // At the end, without a match: appends the text that was held back.
  void flush(std::string* out);

  bool matched() const { return matched_; }
  int64_t held() const { return static_cast<int64_t>(held_.size()); }

 private:
  // One stop string and the longest of its prefixes that the text so far ends with (Knuth, Morris,
  // Pratt). A byte costs amortized O(1) per stop string.
  struct Pattern {
    std::string bytes;
    std::vector<int32_t> border;  // [i]: longest proper prefix that also ends bytes[0, i]
    int32_t length = 0;           // of the prefix matched so far
  };

  std::vector<Pattern> patterns_;
  std::string held_;  // the longest prefix matched so far
  bool matched_ = false;
};

}  // namespace sinkstream
