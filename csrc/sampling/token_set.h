// A few token ids: the end tokens of a model, the stop tokens of a request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sinkstream {

class TokenSet {
 public:
  TokenSet() = default;
  explicit TokenSet(std::vector<int32_t> ids) : ids_(std::move(ids)) {
    std::sort(ids_.begin(), ids_.end());
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  }

  bool contains(int32_t id) const { return std::binary_search(ids_.begin(), ids_.end(), id); }
  const std::vector<int32_t>& ids() const { return ids_; }  // ascending, each once

 private:
  std::vector<int32_t> ids_;
};

}  // namespace sinkstream
