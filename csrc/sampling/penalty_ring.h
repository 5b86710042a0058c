// Counts the tokens that are live in a cache: the first `sinks` and the last `window`.
// A token costs O(1). Memory is allocated once, in proportion to the cache, not the vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/logits.h"

namespace sinkstream {

class PenaltyRing {
 public:
  // `max_length` bounds the tokens that will ever be appended (prompt + max_tokens), so that a
  // short sequence takes little memory; INT64_MAX if it never ends. `window` is at least 1.
  PenaltyRing(int64_t sinks, int64_t window, int64_t max_length);

  // Appends the next token, `id` >= 0; a full window drops its oldest one.
  void append(int32_t id);

  // Every live token once, in no particular order. Valid until the next `append`.
  std::span<const TokenCount> counts() const { return counts_; }
  int64_t length() const { return length_; }  // tokens appended, evicted ones included

 private:
  int32_t& token(int64_t index);
  void add(int32_t id);
  void remove(int32_t id);
  size_t find(int32_t id) const;
  size_t home(int32_t id) const;

  int64_t sinks_;
  int64_t window_;
  int64_t length_ = 0;
  std::vector<int32_t> sink_tokens_;    // the token of index i < sinks
  std::vector<int32_t> window_tokens_;  // a ring
  std::vector<TokenCount> counts_;      // dense, for LogitsArgs
  std::vector<int32_t> table_;  // open addressing, a power of two: index in counts_, or −1
};

}  // namespace sinkstream
