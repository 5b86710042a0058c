// The ids of a sequence's tokens: of the live ones, and of as many before them as there is room
// for, so that a sequence can go back. Its memory is fixed. Knows nothing about keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/window.h"

namespace sinkstream {

class TokenLog {
 public:
  // `most`: how many of the last window tokens it keeps; at least W are.
  TokenLog(const Window& window, int64_t most)
      : window_(window),
        capacity_(std::max(most, window.window)),
        sinks_(window.sinks),
        ring_(std::make_unique_for_overwrite<int32_t[]>(static_cast<size_t>(capacity_))) {}

  int64_t length() const { return length_; }  // tokens appended, evicted ones included
  // The index from which on all ids are kept; 0 if all are. Sinks always are.
  int64_t first_kept() const { return first_kept_ > window_.sinks ? first_kept_ : 0; }

  void append(std::span<const int32_t> ids) {
    for (const int32_t id : ids) {
      const int64_t index = length_++;
      (window_.is_sink(index) ? sinks_[static_cast<size_t>(index)] : ring_[row(index)]) = id;
    }
    first_kept_ = std::max(first_kept_, length_ - capacity_);
  }

  // Drops the tokens from index `length` on.
  void rewind(int64_t length) { length_ = length; }

  // Starts over with a sequence of `length` tokens, of which `ids` are the sinks and the last ones.
  void restore(std::span<const int32_t> ids, int64_t length) {
    length_ = first_kept_ = 0;
    append(ids.first(std::min<size_t>(ids.size(), sinks_.size())));
    if (ids.size() <= sinks_.size()) return;
    const auto in_window = ids.subspan(sinks_.size());
    length_ = first_kept_ = length - static_cast<int64_t>(in_window.size());
    append(in_window);
  }

  // Starts over with the tokens of `other`, which keeps as many.
  void copy_from(const TokenLog& other) {
    length_ = other.length_;
    first_kept_ = other.first_kept_;
    sinks_ = other.sinks_;
    for (int64_t t = std::max(first_kept_, window_.sinks); t < length_;) {
      const int64_t at = row(t), count = std::min(length_ - t, capacity_ - at);
      std::copy_n(other.ring_.get() + at, count, ring_.get() + at);
      t += count;
    }
  }

  // The live tokens of a sequence of that many, in order: sinks, then the window.
  std::vector<int32_t> live(const Window& window, int64_t length) const {
    std::vector<int32_t> found;
    found.reserve(static_cast<size_t>(window.live(length)));
    for (int64_t t = 0; t < std::min(length, window.sinks); ++t) found.push_back(at(t));
    for (int64_t t = window.first(length - 1); t < length; ++t) found.push_back(at(t));
    return found;
  }
  std::vector<int32_t> live() const { return live(window_, length_); }

  // All that are kept, in order: the sinks, then the last tokens; as `restore` takes them.
  std::vector<int32_t> kept() const {
    std::vector<int32_t> found;
    for (int64_t t = 0; t < std::min(length_, window_.sinks); ++t) found.push_back(at(t));
    for (int64_t t = std::max(first_kept_, window_.sinks); t < length_; ++t) found.push_back(at(t));
    return found;
  }

  // The token at an index that is kept.
  int32_t at(int64_t index) const {
    return window_.is_sink(index) ? sinks_[static_cast<size_t>(index)] : ring_[row(index)];
  }

 private:
  // Of a window token, in the ring.
  int64_t row(int64_t index) const { return (index - window_.sinks) % capacity_; }

  Window window_;
  int64_t capacity_;
  int64_t length_ = 0;
  int64_t first_kept_ = 0;           // of the window tokens
  std::vector<int32_t> sinks_;       // [S]
  std::unique_ptr<int32_t[]> ring_;  // [capacity_], window token i in row (i − S) mod capacity_
};

}  // namespace sinkstream
