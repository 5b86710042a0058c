// What goes from the engine to a consumer at once: tokens, their text, and what happened between
// them. Plain vectors that are swapped and used again, so that a token allocates nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "sampling/sampler.h"

namespace sinkstream {

struct StreamToken {
  int32_t id;
  float logprob;
  uint32_t text_bytes;  // how much of the batch's text this token completed, often 0
  uint8_t top_count;    // how many of the batch's `top` belong to it
};

// Something that is no token, and its place among the tokens.
struct StreamMark {
  enum class Kind : uint8_t {
    kStarted,  // admitted: the sequence has its memory, and `count` prompt tokens to read
    kPrefill,  // `count` prompt tokens have been read in all
    kEvicted,  // `count` more tokens have left the cache
  };
  Kind kind;
  uint32_t tokens_before;  // in the same batch
  int64_t count;
};

struct StreamBatch {
  std::string text;  // valid UTF-8; what exceeds the tokens' text_bytes belongs to the stream's end
  std::vector<StreamToken> tokens;
  std::vector<TokenLogprob> top;
  std::vector<StreamMark> marks;  // in order

  bool empty() const { return tokens.empty() && marks.empty() && text.empty(); }

  void clear() {
    text.clear();
    tokens.clear();
    top.clear();
    marks.clear();
  }

  // The mark of the same kind, if there is one, moves to the new place and takes the new one in:
  // progress is replaced, counts of evicted tokens are added up. So a consumer that lags finds one
  // mark of each kind, not one for each token or chunk.
  void add_mark(StreamMark::Kind kind, int64_t count) {
    const auto same = std::find_if(marks.begin(), marks.end(),
                                   [kind](const StreamMark& mark) { return mark.kind == kind; });
    if (same != marks.end()) {
      if (kind == StreamMark::Kind::kEvicted) count += same->count;
      marks.erase(same);
    }
    marks.push_back({kind, static_cast<uint32_t>(tokens.size()), count});
  }

  // All of it; where there is no memory, nothing of it.
  void append(const StreamBatch& other) {
    make_room(&text, other.text.size());
    make_room(&tokens, other.tokens.size());
    make_room(&top, other.top.size());
    make_room(&marks, other.marks.size());
    const auto offset = static_cast<uint32_t>(tokens.size());
    for (const StreamMark& mark : other.marks) {
      add_mark(mark.kind, mark.count);
      marks.back().tokens_before = offset + mark.tokens_before;
    }
    text += other.text;
    tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
    top.insert(top.end(), other.top.begin(), other.top.end());
  }

 private:
  // As growing does it: to twice the size at least.
  template <typename Buffer>
  static void make_room(Buffer* buffer, size_t more) {
    if (buffer->capacity() - buffer->size() >= more) return;
    buffer->reserve(std::max(buffer->size() + more, 2 * buffer->capacity()));
  }
};

}  // namespace sinkstream
