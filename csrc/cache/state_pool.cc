#include "cache/state_pool.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace sinkstream {

StatePool::StatePool(int64_t lane_bytes, int64_t lanes, int64_t slots,
                     std::unique_ptr<PageMemory> memory, bool poison)
    : lane_bytes_(lane_bytes),
      lanes_(lanes),
      slots_(slots),
      memory_(std::move(memory)),
      poison_(poison) {
  SINKSTREAM_CHECK(memory_->bytes() >= slots * slot_bytes(), slots, " states do not fit into ",
                   memory_->bytes(), " bytes");
  free_.reserve(static_cast<size_t>(slots));
  for (int64_t slot = slots - 1; slot >= 0; --slot) free_.push_back(static_cast<int32_t>(slot));
  if (poison_) memory_->poison(memory_->data(), memory_->bytes());
}

int32_t StatePool::acquire() {
  SINKSTREAM_CHECK(!free_.empty(), "none of the ", slots_, " state slots is free");
  const int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void StatePool::release(int32_t slot) {
  if (poison_) memory_->poison(lane(slot, 0), slot_bytes());
  free_.push_back(slot);
}

void StatePool::forget(int32_t slot, int64_t lane) const {
  if (poison_) memory_->poison(this->lane(slot, lane), lane_bytes_);
}

StateSlot::StateSlot(StatePool* pool)
    : pool_(pool), lengths_(static_cast<size_t>(pool->lanes()), kNone) {
  slot_ = pool->acquire();  // nothing fails once there is a slot
  restart();
}

StateSlot::StateSlot(const StateSlot& other, int64_t length)
    : pool_(other.pool_), lengths_(other.lengths_.size(), kNone) {
  other.lane_of(length);  // there is one
  slot_ = pool_->acquire();
  copy_from(other, length);
}

int64_t StateSlot::find(int64_t length) const {
  const auto found = std::ranges::find(lengths_, length);
  return found == lengths_.end() ? -1 : found - lengths_.begin();
}

int64_t StateSlot::find_free() const {
  const int64_t lane = find(kNone);
  SINKSTREAM_CHECK(lane >= 0, "none of the ", lengths_.size(), " lanes of a state is free");
  return lane;
}

int64_t StateSlot::longest(int64_t most) const {
  int64_t longest = kNone;
  for (const int64_t length : lengths_) {
    if (length <= most) longest = std::max(longest, length);
  }
  return longest;
}

std::byte* StateSlot::lane_of(int64_t length) const {
  const int64_t lane = find(length);
  SINKSTREAM_CHECK(length >= 0 && lane >= 0, "no lane of a state stands for ", length, " tokens");
  return pool_->lane(slot_, lane);
}

// Frees the lanes whose length has passed.
template <typename Passed>
void StateSlot::forget_if(const Passed& is_passed) {
  for (size_t lane = 0; lane < lengths_.size(); ++lane) {
    if (lengths_[lane] == kNone || !is_passed(lengths_[lane])) continue;
    lengths_[lane] = kNone;
    pool_->forget(slot_, static_cast<int64_t>(lane));
  }
}

void StateSlot::commit(int64_t length) {
  lane_of(length);  // there is one
  forget_if([&](int64_t other) { return other < length && other != kept_; });
}

void StateSlot::rewind(int64_t length) {
  lane_of(length);
  forget_if([&](int64_t other) { return other > length; });
}

void StateSlot::keep(int64_t length) {
  lane_of(length);
  kept_ = length;
  commit(length);
}

void StateSlot::relabel(int64_t length, int64_t other) {
  const int64_t lane = find(length);
  SINKSTREAM_CHECK(lane >= 0, "no lane of a state stands for ", length, " tokens");
  forget_if([&](int64_t each) { return each != length; });
  lengths_[static_cast<size_t>(lane)] = other;
  kept_ = kNone;
}

void StateSlot::restart() {
  forget_if([](int64_t) { return true; });
  lengths_[0] = 0;
  kept_ = kNone;
  pool_->memory().fill(pool_->lane(slot_, 0), 0, pool_->lane_bytes());
}

void StateSlot::copy_from(const StateSlot& other, int64_t length) {
  const std::byte* const from = other.lane_of(length);
  forget_if([](int64_t) { return true; });
  lengths_[0] = length;
  kept_ = kNone;
  pool_->memory().copy(pool_->lane(slot_, 0), from, pool_->lane_bytes());
}

}  // namespace sinkstream
