// Finds stop strings in text that comes in pieces, and holds back what may be the beginning of one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sinkstream {

// The match that ends first wins: it is known without generating further. Of several that end
// together, the longest, so that nothing of any of them is shown. How the text is cut into pieces
// does not matter. Memory is bounded by the stop strings, whatever the text's length.
class StopMatcher {
 public:
  // No stop is empty; each is valid UTF-8, and so is all text, piece by piece: then what is emitted
  // is valid too.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Appends to `out` what cannot belong to a stop string any more. Returns whether a stop string is
  // complete: then everything before it has been emitted, and nothing will be from now on.
  bool feed(std::string_view text, std::string* out);
  // The end without a match: appends what was held back.
  void flush(std::string* out);

  bool matched() const { return matched_; }
  int64_t held() const { return static_cast<int64_t>(held_.size()); }

 private:
  // One stop string and the longest of its prefixes that ends the text so far (Knuth, Morris,
  // Pratt): a byte costs O(1) amortised for each.
  struct Pattern {
    std::string bytes;
    std::vector<int32_t> border;  // [i]: longest proper prefix that also ends bytes[0, i]
    int32_t length = 0;           // of the prefix matched so far
  };

  std::vector<Pattern> patterns_;
  std::string held_;  // the longest prefix that is matched so far
  bool matched_ = false;
};

}  // namespace sinkstream
