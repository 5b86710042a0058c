// The ids of a cache's live tokens, in fixed-size memory. Knows nothing about keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/window.h"

namespace sinkstream {

class LiveTokens {
 public:
  explicit LiveTokens(const Window& window)
      : window_(window), sinks_(window.sinks), ring_(window.window) {}

  int64_t length() const { return length_; }  // tokens appended, evicted ones included

  void append(std::span<const int32_t> ids) {
    for (const int32_t id : ids) {
      const int64_t index = length_++;
      (window_.is_sink(index) ? sinks_ : ring_)[row(index)] = id;
    }
  }

  // Drops the tokens from index `length` on. Nothing may have been evicted since they were
  // appended.
  void rewind(int64_t length) { length_ = length; }

  // Starts over with the live `ids` of a sequence of `length` tokens.
  void restore(std::span<const int32_t> ids, int64_t length) {
    length_ = 0;
    append(ids.first(std::min<size_t>(ids.size(), sinks_.size())));
    if (ids.size() <= sinks_.size()) return;
    const auto in_window = ids.subspan(sinks_.size());
    length_ = length - static_cast<int64_t>(in_window.size());
    append(in_window);
  }

  // All live tokens in order: sinks, then the window.
  std::vector<int32_t> ids() const {
    std::vector<int32_t> found;
    found.reserve(static_cast<size_t>(window_.live(length_)));
    for (int64_t t = 0; t < std::min(length_, window_.sinks); ++t) found.push_back(at(t));
    for (int64_t t = window_.first(length_ - 1); t < length_; ++t) found.push_back(at(t));
    return found;
  }

  // The token at a live index.
  int32_t at(int64_t index) const { return (window_.is_sink(index) ? sinks_ : ring_)[row(index)]; }

 private:
  // Its row among the sinks, or in the ring.
  size_t row(int64_t index) const {
    if (window_.is_sink(index)) return static_cast<size_t>(index);
    return static_cast<size_t>((index - window_.sinks) % window_.window);
  }

  Window window_;
  int64_t length_ = 0;
  std::vector<int32_t> sinks_;  // [S]
  std::vector<int32_t> ring_;   // [W], window token i at (i − S) mod W
};

}  // namespace sinkstream
