#include "model/cpu/expert_rows.h"

namespace sinkstream {

void ExpertRows::reserve(int64_t choices, int64_t experts) {
  next_.reserve(static_cast<size_t>(experts));
  runs_.reserve(static_cast<size_t>(experts));
  token_of_.reserve(static_cast<size_t>(choices));
  positions_.reserve(static_cast<size_t>(choices));
}

void ExpertRows::make(std::span<const int32_t> ids, int64_t chosen, int64_t experts) {
  next_.assign(static_cast<size_t>(experts), 0);
  for (const int32_t id : ids) ++next_[static_cast<size_t>(id)];
  runs_.clear();
  int64_t first = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    int64_t& next = next_[static_cast<size_t>(expert)];
    const int64_t count = next;
    next = first;
    if (count > 0) runs_.push_back({static_cast<int32_t>(expert), first, count});
    first += count;
  }
  token_of_.resize(ids.size());
  positions_.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t position = next_[static_cast<size_t>(ids[i])]++;
    token_of_[static_cast<size_t>(position)] =
        static_cast<int32_t>(static_cast<int64_t>(i) / chosen);
    positions_[i] = static_cast<int32_t>(position);
  }
}

}  // namespace sinkstream
