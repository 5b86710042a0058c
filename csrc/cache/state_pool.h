// Memory for layers that keep a state of fixed size instead of keys: a fixed number of slots, each
// one sequence's states of all such layers. Knows nothing about what a state means.
//
// Note: [Lanes]
// A state is a sum over all tokens so far, so no token can be taken out of it, and writing the next
// one in place would lose what came before. So a slot has lanes. A lane is the states of all layers
// after the first `length` tokens of the sequence, and it knows that length: it *stands for* it.
//
//   launch    a step reads the lane that stands for its first token's index and writes a free one,
//             which then stands for the index after its last token; a step of n tokens writes one
//   commit    the lane of the new length() is the head; what lies before it is free
//   drop      the lanes above length() are free, and nothing is undone
//   keep      the head stays, however far the sequence goes on, until another one is kept
//   rewind    possible only to a length that a lane stands for: the head's or the kept one's
//   fork      likewise; the lane is copied to the other sequence's slot
//   evict     nothing: what has left the window stays in the sum
//
// At a launch, the head, the kept lane and those of the steps already in flight are taken, and one
// more must be free: 2 lanes and one for each step that may be in flight. Which lanes exist between
// two steps depends on the calls alone, not on when results arrive: a lane that is neither head nor
// kept is freed by the commit that passes it. No lane stands for a part of a step, so a step of
// which only some tokens may be kept (drafts) needs one of its own for each.
//
// A slot's new owner begins with a head of zeros. Every other lane is written whole before it is
// read. Launches and these operations take effect in order (page_memory.h), so a lane may be freed
// and used again while a step that reads it is still in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/page_memory.h"

namespace sinkstream {

// Not thread-safe: one thread owns the pool and everything that holds its slots.
class StatePool {
 public:
  static constexpr int64_t lanes_for(int64_t steps_in_flight) { return 2 + steps_in_flight; }

  // In memory that has room for `slots` slots of `lanes` lanes. With `poison`, a lane holds NaN
  // while it is free, so that reading one by mistake shows up.
  StatePool(int64_t lane_bytes, int64_t lanes, int64_t slots, std::unique_ptr<PageMemory> memory,
            bool poison = false);
  // On the host.
  StatePool(int64_t lane_bytes, int64_t lanes, int64_t slots, bool poison = false)
      : StatePool(lane_bytes, lanes, slots,
                  std::make_unique<HostPages>(slots * lanes * lane_bytes, nullptr), poison) {}

  int64_t lane_bytes() const { return lane_bytes_; }
  int64_t lanes() const { return lanes_; }
  int64_t slot_bytes() const { return lanes_ * lane_bytes_; }
  int64_t slots() const { return slots_; }
  int64_t free_slots() const { return static_cast<int64_t>(free_.size()); }
  int64_t bytes() const { return memory_->bytes(); }
  PageMemory& memory() const { return *memory_; }
  std::byte* lane(int32_t slot, int64_t lane) const {
    return memory_->data() + slot * slot_bytes() + lane * lane_bytes_;
  }

  // Lends a slot; the caller has checked that one is free. Its contents are undefined.
  int32_t acquire();
  void release(int32_t slot);
  // The lane is free now.
  void forget(int32_t slot, int64_t lane) const;

  // Frees the memory. The slots must not be used afterwards.
  void release() { memory_->release(); }

 private:
  int64_t lane_bytes_;
  int64_t lanes_;
  int64_t slots_;
  std::unique_ptr<PageMemory> memory_;
  bool poison_;
  std::vector<int32_t> free_;  // the next slot to lend is at the back
};

// A sequence's slot, and what each of its lanes stands for.
class StateSlot {
 public:
  // A slot of `pool`, which outlives it; the caller has checked that one is free. The head is zeros
  // and stands for 0 tokens.
  explicit StateSlot(StatePool* pool);
  // One whose head is a copy of the lane of `other` that stands for `length`.
  StateSlot(const StateSlot& other, int64_t length);
  ~StateSlot() { pool_->release(slot_); }
  StateSlot(const StateSlot&) = delete;
  StateSlot& operator=(const StateSlot&) = delete;

  int32_t slot() const { return slot_; }
  StatePool& pool() const { return *pool_; }

  bool stands_for(int64_t length) const { return find(length) >= 0; }
  // The greatest length that a lane stands for, of those up to `most`; −1: none.
  int64_t longest(int64_t most) const;
  // The lane that stands for `length`.
  std::byte* lane_of(int64_t length) const;
  // The lane that the next step is to write.
  std::byte* free_lane() const { return pool_->lane(slot_, find_free()); }

  // A launched step has written the free lane: it stands for `length`.
  void add(int64_t length) { lengths_[static_cast<size_t>(find_free())] = length; }
  // The lane that stands for `length` is the head; frees those before it, except the kept one.
  void commit(int64_t length);
  // Frees the lanes above `length`, which one stands for.
  void rewind(int64_t length);
  // Keeps the head, which stands for `length`, and no other lane.
  void keep(int64_t length);
  // The head, which stands for `length`, stands for `other` instead; it alone is left.
  void relabel(int64_t length, int64_t other);
  // Starts over.
  void restart();
  // Starts over with a copy of the lane of `other` that stands for `length`.
  void copy_from(const StateSlot& other, int64_t length);

 private:
  static constexpr int64_t kNone = -1;

  int64_t find(int64_t length) const;  // the number of the lane; −1: none
  int64_t find_free() const;
  template <typename Passed>
  void forget_if(const Passed& is_passed);

  StatePool* pool_;
  int32_t slot_;
  std::vector<int64_t> lengths_;  // [lanes], each different; kNone: the lane is free
  int64_t kept_ = kNone;          // the length that the kept lane stands for
};

}  // namespace sinkstream
