#include "sampling/call_finder.h"

namespace sinkstream {

namespace {

// The most white space before a tag, as in python/sinkstream/text/thought_reader.py.
constexpr int64_t kMaxSpaces = 64;

bool is_space(char byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

}  // namespace

CallFinder::CallFinder(CallTags tags)
    : state_(tags.is_in_thought           ? State::kThought
             : tags.thought_begin.empty() ? State::kText
                                          : State::kStart),
      is_first_(tags.is_first),
      call_begin_(tags.call_begin),
      first_call_{std::move(tags.call_begin)},
      thought_begin_{std::move(tags.thought_begin)},
      thought_end_(std::move(tags.thought_end)),
      markers_(std::move(tags.markers)) {}

bool CallFinder::AtStart::feed(char byte) {
  if (differs || (length == 0 && is_space(byte) && ++spaces <= kMaxSpaces)) return false;
  differs = bytes.empty() || bytes[length] != byte;
  if (differs) return false;
  return ++length == static_cast<int64_t>(bytes.size());
}

bool CallFinder::feed_call(char byte) {
  return is_first_ ? first_call_.feed(byte) : call_begin_.feed(byte);
}

void CallFinder::feed(char byte) {
  switch (state_) {
    case State::kStart:
      if (feed_call(byte)) {
        state_ = State::kCalls;
      } else if (thought_begin_.feed(byte)) {
        state_ = State::kThought;
      } else if (thought_begin_.differs) {
        state_ = State::kText;
      }
      return;
    case State::kThought:
      if (!thought_end_.feed(byte)) return;
      state_ = State::kText;
      call_begin_.restart();
      first_call_ = {std::move(first_call_.bytes)};
      return;
    case State::kText:
      if (feed_call(byte)) state_ = State::kCalls;
      return;
    case State::kCalls: return;
  }
}

void CallFinder::feed_token(int32_t token) {
  for (const auto& [id, marker] : markers_) {
    if (id != token) continue;
    for (const char byte : marker) feed(byte);
  }
}

int64_t CallFinder::begun() const {
  if (state_ == State::kThought || state_ == State::kCalls) return 0;
  if (!is_first_) return call_begin_.length();
  return first_call_.differs ? 0 : first_call_.length;
}

}  // namespace sinkstream
