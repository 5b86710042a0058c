// One delivery from the engine to a consumer: tokens, their text, and events between them. Plain
// vectors, swapped and reused, so that a token allocates nothing.
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
  uint32_t text_bytes;  // bytes of the batch's text that this token completed, often 0
  uint8_t top_count;    // entries of the batch's `top` that belong to it
};

// A token of the prompt, if its log-probability was asked for.
struct PromptToken {
  int32_t id;
  float logprob;      // NaN for the first, which no token precedes
  uint8_t top_count;  // entries of the batch's `prompt_top` that belong to it
};

// An event other than a token, and its position among the tokens.
struct StreamMark {
  enum class Kind : uint8_t {
    kStarted,  // admitted, with `count` prompt tokens
    kPrefill,  // `count` prompt tokens are prefilled in total
    kEvicted,  // `count` more tokens have been evicted
  };
  Kind kind;
  uint32_t tokens_before;  // tokens before it in this batch
  int64_t count;
};

struct StreamBatch {
  std::string text;  // valid UTF-8; bytes after the tokens' text_bytes belong to the stream's end
  std::vector<StreamToken> tokens;
  std::vector<TokenLogprob> top;
  std::vector<PromptToken> prompt;  // all before `tokens`
  std::vector<TokenLogprob> prompt_top;
  std::vector<StreamMark> marks;  // in order

  bool empty() const { return tokens.empty() && prompt.empty() && marks.empty() && text.empty(); }

  void clear() {
    text.clear();
    tokens.clear();
    top.clear();
    prompt.clear();
    prompt_top.clear();
    marks.clear();
  }

  // A mark replaces an earlier one of the same kind; counts of evicted tokens are added up. So a
  // lagging consumer finds one mark of each kind, not one for each token or chunk.
  void add_mark(StreamMark::Kind kind, int64_t count) {
    const auto same = std::find_if(marks.begin(), marks.end(),
                                   [kind](const StreamMark& mark) { return mark.kind == kind; });
    if (same != marks.end()) {
      if (kind == StreamMark::Kind::kEvicted) count += same->count;
      marks.erase(same);
    }
    marks.push_back({kind, static_cast<uint32_t>(tokens.size()), count});
  }

  // Strong exception guarantee: if memory runs out, nothing is appended.
  void append(const StreamBatch& other) {
    make_room(&text, other.text.size());
    make_room(&tokens, other.tokens.size());
    make_room(&top, other.top.size());
    make_room(&prompt, other.prompt.size());
    make_room(&prompt_top, other.prompt_top.size());
    make_room(&marks, other.marks.size());
    const auto offset = static_cast<uint32_t>(tokens.size());
    for (const StreamMark& mark : other.marks) {
      add_mark(mark.kind, mark.count);
      marks.back().tokens_before = offset + mark.tokens_before;
    }
    text += other.text;
    tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
    top.insert(top.end(), other.top.begin(), other.top.end());
    prompt.insert(prompt.end(), other.prompt.begin(), other.prompt.end());
    prompt_top.insert(prompt_top.end(), other.prompt_top.begin(), other.prompt_top.end());
  }

 private:
  // Grows geometrically.
  template <typename Buffer>
  static void make_room(Buffer* buffer, size_t more) {
    if (buffer->capacity() - buffer->size() >= more) return;
    buffer->reserve(std::max(buffer->size() + more, 2 * buffer->capacity()));
  }
};

}  // namespace sinkstream
