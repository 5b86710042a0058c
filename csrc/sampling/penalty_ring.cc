#include "sampling/penalty_ring.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace sinkstream {

PenaltyRing::PenaltyRing(int64_t sinks, int64_t window, int64_t max_length)
    : sinks_(sinks), window_(window) {
  SINKSTREAM_CHECK(sinks >= 0 && window >= 1 && max_length >= 0, "sinks ", sinks, ", window ",
                   window, ", max_length ", max_length);
  const int64_t sink_tokens = std::min(sinks, max_length);
  const int64_t window_tokens = std::min(window, max_length - sink_tokens);
  sink_tokens_.resize(sink_tokens);
  window_tokens_.resize(std::max<int64_t>(window_tokens, 1));
  counts_.reserve(sink_tokens + window_tokens);
  // At most half full, so that a search takes two or three steps.
  table_.assign(std::bit_ceil(static_cast<size_t>(2 * (sink_tokens + window_tokens) + 1)), -1);
}

void PenaltyRing::append(int32_t id) {
  const int64_t index = length_++;
  if (index - window_ >= sinks_) remove(token(index - window_));
  token(index) = id;
  add(id);
}

int32_t& PenaltyRing::token(int64_t index) {
  if (index < sinks_) return sink_tokens_.at(index);
  return window_tokens_[(index - sinks_) % static_cast<int64_t>(window_tokens_.size())];
}

void PenaltyRing::add(int32_t id) {
  const size_t bucket = find(id);
  if (table_[bucket] >= 0) {
    ++counts_[table_[bucket]].count;
    return;
  }
  SINKSTREAM_CHECK(counts_.size() < counts_.capacity(), "more tokens than max_length");
  table_[bucket] = static_cast<int32_t>(counts_.size());
  counts_.push_back({id, 1});
}

void PenaltyRing::remove(int32_t id) {
  size_t hole = find(id);
  const int32_t freed = table_[hole];
  if (--counts_[freed].count > 0) return;

  // The last entry of counts_ moves to the freed one.
  table_[find(counts_.back().id)] = freed;
  counts_[freed] = counts_.back();
  counts_.pop_back();

  // Later entries of the probe sequence move up, so that no search stops early at the hole.
  const size_t mask = table_.size() - 1;
  for (size_t next = (hole + 1) & mask; next != hole; next = (next + 1) & mask) {
    if (table_[next] < 0) break;
    const size_t wanted = home(counts_[table_[next]].id);
    if (((next - wanted) & mask) < ((next - hole) & mask)) continue;
    table_[hole] = table_[next];
    hole = next;
  }
  table_[hole] = -1;
}

// The bucket of `id`, or the empty one where it belongs.
size_t PenaltyRing::find(int32_t id) const {
  const size_t mask = table_.size() - 1;
  size_t bucket = home(id);
  while (table_[bucket] >= 0 && counts_[table_[bucket]].id != id) bucket = (bucket + 1) & mask;
  return bucket;
}

size_t PenaltyRing::home(int32_t id) const {
  // 2^32 divided by the golden ratio spreads neighbors (Knuth, volume 3, 6.4).
  return (static_cast<uint32_t>(id) * uint32_t{0x9E3779B1} >> 7) & (table_.size() - 1);
}

}  // namespace sinkstream
