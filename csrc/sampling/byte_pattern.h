// One string that is looked for in bytes that arrive one by one (Knuth, Morris, Pratt). A byte
// costs amortized O(1).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sinkstream {

class BytePattern {
 public:
  // An empty string is never found.
  explicit BytePattern(std::string bytes) : bytes_(std::move(bytes)), border_(bytes_.size()) {
    for (size_t i = 1; i < bytes_.size(); ++i) border_[i] = extended(border_[i - 1], bytes_[i]);
  }

  // Adds a byte. Returns whether the string is complete with it.
  bool feed(char byte) {
    if (bytes_.empty()) return false;
    length_ = extended(length_ == size() ? border_.back() : length_, byte);
    return length_ == size();
  }
  void restart() { length_ = 0; }

  // The length of its longest prefix that the bytes so far end with.
  int64_t length() const { return length_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  // The length of the longest prefix that is a suffix of `bytes_[0, length)` followed by `byte`.
  // `border_` is known below `length`, which is less than size().
  int64_t extended(int64_t length, char byte) const {
    while (length > 0 && bytes_[length] != byte) length = border_[length - 1];
    return bytes_[length] == byte ? length + 1 : 0;
  }

  std::string bytes_;
  std::vector<int64_t> border_;  // [i]: longest proper prefix that also ends bytes_[0, i]
  int64_t length_ = 0;
};

}  // namespace sinkstream
