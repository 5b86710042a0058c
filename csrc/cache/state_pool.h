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
//   keep      the head stays, however far the sequence goes on: Note [Kept lanes]
//   rewind    possible only to a length that a lane stands for: the head's, a kept one's, or 0
//   fork      likewise; the lane is copied to the other sequence's slot
//   evict     nothing: what has left the window stays in the sum
//
// At a launch, the head, the kept lanes and those of the steps already in flight are taken, and one
// more must be free: one for the head, those that may be kept, and one for each step that may be in
// flight. Which lanes exist between two steps depends on the calls alone, not on when results
// arrive: a lane that is neither head nor kept is freed by the commit that passes it. No lane
// stands for a part of a step, so a step of which only some tokens may be kept (drafts) needs one
// of its own for each.
//
// Note: [Kept lanes]
// The first lane that is kept stays for as long as the sequence goes on after it: it is where the
// system prompt ends, from where an older turn is read again, and what other sequences share. The
// other one is the last that was kept: where the last turn began. One that is kept gives way to it
// then. 0 needs no lane: a state of no tokens is zeros.
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
  // How many lanes a sequence may keep, next to its head.
  static constexpr int64_t kKept = 2;
  static_assert(kKept >= 2, "the first one and the last one");
  static constexpr int64_t lanes_for(int64_t steps_in_flight, int64_t kept = kKept) {
    return 1 + kept + steps_in_flight;
  }

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
  // One whose head is a copy of the lane of `other` that stands for `length`; with `keeps`, it has
  // copies of the kept ones before it, too.
  StateSlot(const StateSlot& other, int64_t length, bool keeps);
  ~StateSlot() { pool_->release(slot_); }
  StateSlot(const StateSlot&) = delete;
  StateSlot& operator=(const StateSlot&) = delete;

  int32_t slot() const { return slot_; }
  StatePool& pool() const { return *pool_; }

  // Whether a sequence can begin there, or return there.
  bool stands_for(int64_t length) const { return length == 0 || find(length) >= 0; }
  // The greatest such length, of those up to `most`, which is at least 0.
  int64_t longest(int64_t most) const;
  // What the kept lanes stand for, ascending.
  const std::vector<int64_t>& kept() const { return kept_; }
  // The lane that stands for `length`.
  std::byte* lane_of(int64_t length) const;
  // The lane that the next step is to write.
  std::byte* free_lane() const { return pool_->lane(slot_, find_free()); }

  // A launched step has written the free lane: it stands for `length`.
  void add(int64_t length) { lengths_[static_cast<size_t>(find_free())] = length; }
  // The lane that stands for `length` is the head; frees those before it, except the kept ones.
  void commit(int64_t length);
  // Frees the lanes above `length`, which one stands for.
  void rewind(int64_t length);
  // Keeps the head, which stands for `length` > 0; frees the lanes before it that are not kept.
  void keep(int64_t length);
  // The free lane stands for `length`, above those that are kept, and is kept, too.
  void add_kept(int64_t length);
  // The lane that stands for `length` stands for `other` instead.
  void relabel(int64_t length, int64_t other);
  // Frees all other lanes than the one that stands for `length`.
  void keep_only(int64_t length);
  // The head is zeros and stands for `index`. Of the kept lanes, those up to `most_kept` stay; if
  // one stands for `index`, it is the head instead.
  void restart_at(int64_t index, int64_t most_kept);
  // Starts over.
  void restart() { restart_at(0, 0); }
  // Starts over with a copy of the lane of `other` that stands for `length`.
  void copy_from(const StateSlot& other, int64_t length);

 private:
  static constexpr int64_t kNone = -1;

  int64_t find(int64_t length) const;  // the number of the lane; −1: none
  int64_t find_free() const;
  bool is_kept(int64_t length) const;
  void copy_lane(const StateSlot& other, int64_t length);
  template <typename Passed>
  void forget_if(const Passed& is_passed);

  StatePool* pool_;
  int32_t slot_;
  std::vector<int64_t> lengths_;  // [lanes], each different; kNone: the lane is free
  std::vector<int64_t> kept_;     // what the kept lanes stand for, ascending; at most kKept
};

}  // namespace sinkstream
