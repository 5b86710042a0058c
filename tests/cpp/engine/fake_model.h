// A language model by rule: the next token is a hash of all tokens before it, so that every test
// knows what must come, and a token that got lost, doubled or into a wrong cache changes the rest.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <semaphore>
#include <unordered_map>
#include <vector>

#include "model/language_model.h"

namespace sinkstream {

inline constexpr int64_t kFakeVocab = 300;

// FNV-1a over token ids.
class TokenHash {
 public:
  void add(int32_t token) { state_ = (state_ ^ static_cast<uint32_t>(token)) * 1099511628211u; }
  int32_t next_token() const { return static_cast<int32_t>((state_ >> 20) % kFakeVocab); }

 private:
  uint64_t state_ = 14695981039346656037u;
};

// What greedy sampling must produce after `prompt`.
inline std::vector<int32_t> expected_reply(const std::vector<int32_t>& prompt, int64_t count) {
  TokenHash hash;
  for (const int32_t token : prompt) hash.add(token);
  std::vector<int32_t> reply;
  for (int64_t i = 0; i < count; ++i) {
    reply.push_back(hash.next_token());
    hash.add(reply.back());
  }
  return reply;
}

class FakeModel : public LanguageModel {
 public:
  int64_t vocab() const override { return kFakeVocab; }
  int64_t max_tokens() const override { return max_tokens_; }

  void forward(std::span<const ForwardSpan> spans, float* logits) override {
    if (gate != nullptr) gate->acquire();
    if (before_forward) before_forward(forwards.load());
    int64_t tokens = 0;
    for (const ForwardSpan& span : spans) {
      tokens += span.count;
      TokenHash& hash = hashes_[span.cache];
      if (span.cache->length() == 0) hash = {};
      bool is_poisoned = false;
      for (int64_t i = 0; i < span.count; ++i) {
        hash.add(span.tokens[i]);
        is_poisoned |= span.tokens[i] == poison_token;
      }
      span.cache->advance(span.count);
      if (span.logits == LogitsOf::kNone) continue;
      std::fill(logits, logits + kFakeVocab, 0.0f);
      logits[hash.next_token()] = 20;
      if (is_poisoned) logits[7] = std::numeric_limits<float>::quiet_NaN();
      logits += kFakeVocab;
    }
    if (tokens > max_tokens_) too_long = true;
    widest = std::max<int64_t>(widest, static_cast<int64_t>(spans.size()));
    ++forwards;
  }

  int64_t max_tokens_ = 64;
  int32_t poison_token = -1;  // whose next logits hold NaN
  std::function<void(int64_t forward)> before_forward;
  std::counting_semaphore<1 << 20>* gate = nullptr;  // one permit for each forward
  std::atomic<int64_t> forwards{0};
  std::atomic<int64_t> widest{0};  // most sequences of one forward
  std::atomic<bool> too_long{false};

 private:
  std::unordered_map<const SequenceCache*, TokenHash> hashes_;
};

}  // namespace sinkstream
