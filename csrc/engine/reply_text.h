// The text of one reply: detokenization, and the stop strings that end it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sampling/detokenizer.h"
#include "sampling/stop_strings.h"

namespace sinkstream {

class ReplyText {
 public:
  // Without a table there is no text and there are no stop strings. `table` must outlive this.
  // `continues_prompt`: the reply continues the prompt's text. `calls`: none if it calls no tools.
  ReplyText(const TokenTable* table, const std::vector<std::string>& stops,
            bool continues_prompt = false, std::optional<CallTags> calls = {}) {
    if (table != nullptr) detokenizer_.emplace(table, continues_prompt);
    if (!stops.empty()) stops_.emplace(stops, std::move(calls));
  }

  // The reply follows `ids`; see Detokenizer::follow.
  void follow(std::span<const int32_t> ids) {
    if (detokenizer_) detokenizer_->follow(ids);
  }

  // Appends the token's text. Returns whether a stop string is complete.
  bool push(int32_t token, std::string* out) {
    if (!detokenizer_) return false;
    if (!stops_) {
      detokenizer_->push(token, out);
      return false;
    }
    piece_.clear();
    stops_->feed_token(token, out);
    detokenizer_->push(token, &piece_);
    return stops_->feed(piece_, out);
  }

  // At the end of the reply: appends what was held back, unless a stop string ended it. Returns
  // whether this completed a stop string.
  bool flush(std::string* out) {
    if (!detokenizer_ || (stops_ && stops_->matched())) return false;
    if (!stops_) {
      detokenizer_->flush(out);
      return false;
    }
    piece_.clear();
    detokenizer_->flush(&piece_);
    return stops_->feed(piece_, out) || stops_->flush(out);
  }

 private:
  std::optional<Detokenizer> detokenizer_;
  std::optional<StopMatcher> stops_;
  std::string piece_;  // reused, so that a token allocates nothing
};

}  // namespace sinkstream
