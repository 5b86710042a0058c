#include "sampling/stop_strings.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace sinkstream {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, std::optional<CallTags> calls) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    SINKSTREAM_CHECK(!stop.empty(), "an empty stop string");
    stops_.emplace_back(stop);
    longest = std::max(longest, stop.size());
  }
  if (calls) {
    longest += calls->call_begin.size();
    calls_.emplace(*std::move(calls));
  }
  held_.reserve(longest);
}

void StopMatcher::feed_token(int32_t token, std::string* out) {
  if (!calls_ || matched_) return;
  calls_->feed_token(token);
  if (is_in_call()) show_held(out);
}

bool StopMatcher::feed(std::string_view text, std::string* out) {
  if (matched_) return true;
  if (stops_.empty() || is_in_call()) {
    out->append(text);
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (calls_) calls_->feed(text[i]);
    if (is_in_call()) {
      show_held(out);
      out->append(text.substr(i));
      return false;
    }
    int64_t keep = 0;      // the longest prefix that ends here
    int64_t complete = 0;  // the longest complete stop string that ends here
    for (BytePattern& stop : stops_) {
      if (stop.feed(text[i])) complete = std::max(complete, stop.size());
      keep = std::max(keep, stop.length());
    }
    held_.push_back(text[i]);
    if (complete > 0 && !match_) match_ = Match{held_.size() - complete, held_.size()};
    const int64_t begun = calls_ ? calls_->begun() : 0;
    if (match_ && static_cast<size_t>(begun) <= held_.size() - match_->end) return take_match(out);
    const size_t safe = match_ ? 0 : held_.size() - keep;
    out->append(held_, 0, safe);
    held_.erase(0, safe);
  }
  return false;
}

bool StopMatcher::flush(std::string* out) {
  if (match_) return take_match(out);
  show_held(out);
  for (BytePattern& stop : stops_) stop.restart();
  return matched_;
}

void StopMatcher::show_held(std::string* out) {
  out->append(held_);
  held_.clear();
  match_.reset();
}

// Shows the text before the first match, and hides the rest for good.
bool StopMatcher::take_match(std::string* out) {
  out->append(held_, 0, match_->begin);
  held_.clear();
  match_.reset();
  return matched_ = true;
}

}  // namespace sinkstream
