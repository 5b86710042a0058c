#include "sampling/stop_strings.h"

#include <algorithm>

#include "common/check.h"

namespace sinkstream {

namespace {

// The length of the longest prefix of `bytes` that is a suffix of `bytes[0, length)` followed by
// `byte`. `border` is known below `length`.
int32_t extend(const std::string& bytes, const std::vector<int32_t>& border, int32_t length,
               char byte) {
  while (length > 0 && bytes[length] != byte) length = border[length - 1];
  return bytes[length] == byte ? length + 1 : 0;
}

}  // namespace

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    SINKSTREAM_CHECK(!stop.empty(), "an empty stop string");
    Pattern& pattern = patterns_.emplace_back(Pattern{stop, std::vector<int32_t>(stop.size())});
    for (size_t i = 1; i < stop.size(); ++i) {
      pattern.border[i] = extend(stop, pattern.border, pattern.border[i - 1], stop[i]);
    }
    longest = std::max(longest, stop.size());
  }
  held_.reserve(longest);
}

bool StopMatcher::feed(std::string_view text, std::string* out) {
  if (matched_) return true;
  if (patterns_.empty()) {
    out->append(text);
    return false;
  }
  for (const char byte : text) {
    int32_t keep = 0;      // the longest prefix that ends here
    int32_t complete = 0;  // the longest complete stop string that ends here
    for (Pattern& pattern : patterns_) {
      pattern.length = extend(pattern.bytes, pattern.border, pattern.length, byte);
      keep = std::max(keep, pattern.length);
      if (pattern.length == static_cast<int32_t>(pattern.bytes.size())) {
        complete = std::max(complete, pattern.length);
      }
    }
    matched_ = complete > 0;
    held_.push_back(byte);
    const size_t safe = held_.size() - (matched_ ? complete : keep);
    out->append(held_, 0, safe);
    if (matched_) {
      held_.clear();
      return true;
    }
    held_.erase(0, safe);
  }
  return false;
}

void StopMatcher::flush(std::string* out) {
  out->append(held_);
  held_.clear();
  for (Pattern& pattern : patterns_) pattern.length = 0;
}

}  // namespace sinkstream
