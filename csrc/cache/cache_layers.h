// What the layers of a model keep: tokens in pages, or a state. Layers with one rule and one page
// shape form a group. Pure arithmetic.
//
// Note: [Cache groups]
// A layer that was trained with a window w of its own keeps the last w tokens and no sinks, as long
// as w is at most the sequence's window W: that is the trained layer, forever. Any other layer
// keeps the sequence's sinks and window, and so does one with w above W. What follows from a
// layer's rule (its rank, the oldest token that a query sees, its pages, its cuts) exists once per
// group. Layers whose pages differ in size are in different groups, too: a group's pages come from
// one pool. The live and evicted tokens of a sequence are those of its largest group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/memory_amount.h"
#include "cache/window.h"
#include "kernels/page.h"

namespace sinkstream {

// The memory of one layer.
struct LayerMemory {
  int64_t own_window = 0;   // w, the current token included; 0: none
  PageShape page;           // its sizes; who makes the pools chooses type and layout
  int64_t state_bytes = 0;  // above 0: a state of this size instead, and no keys
  int64_t state_reach = 0;  // how many of the last tokens it depends on; 0: all
};

// Where a layer's state is in a lane of a StatePool.
struct StateExtent {
  int64_t offset = 0;  // in bytes
  int64_t bytes = 0;

  bool operator==(const StateExtent&) const = default;
};

// Layers that keep the same tokens in pages of one shape.
struct CacheGroup {
  int64_t own_window = 0;       // as LayerMemory's
  size_t shape = 0;             // of CacheLayers::shapes()
  std::vector<int64_t> layers;  // their numbers, ascending; at least one

  int64_t count() const { return static_cast<int64_t>(layers.size()); }
  bool keeps_own(const Window& sequence) const {
    return own_window > 0 && own_window <= sequence.window;
  }
  // What its layers keep of a sequence with these sinks and window, before any cut.
  Window window_of(const Window& sequence) const {
    return keeps_own(sequence) ? Window{0, own_window} : Window{sequence.sinks, sequence.window};
  }
};

// Note: [Reach]
// A key of the first layer depends on its own token alone. A key of layer l + 1 depends on what
// layer l made of its token, which saw the sinks and the last W keys of layer l: its own and W − 1
// before it. So the oldest live key of the last of L layers depends on the tokens from
// W + (L − 1)(W − 1) before the end on, and on the sinks, which depend on no later token. A
// sequence that has its sinks can read again from there, and has the same bits as one that never
// left. A state of the last n tokens, such as a convolution's, adds n instead of W − 1. Any other
// is a sum over all tokens, and depends on all of them.
class CacheLayers {
 public:
  struct LayerInGroup {
    int64_t group = 0;  // kNoGroup: it has a state
    int64_t layer = 0;  // among the group's, or among those with states
  };
  static constexpr int64_t kNoGroup = -1;
  static constexpr int64_t kNoReach = -1;

  // `count` >= 1 layers that all keep the sinks and the window, in pages of one shape.
  CacheLayers(int64_t count);  // NOLINT(google-explicit-constructor): the number says it all
  // [layers], at least one of them with pages. Groups and shapes are in the order of their first
  // layers.
  explicit CacheLayers(std::span<const LayerMemory> layers);

  int64_t count() const { return static_cast<int64_t>(layers_.size()); }
  int64_t group_count() const { return static_cast<int64_t>(groups_.size()); }
  const std::vector<CacheGroup>& groups() const { return groups_; }
  // The sizes of the pages, all different; at most MemoryAmount::kMostShapes.
  const std::vector<PageShape>& shapes() const { return shapes_; }
  // Of the layers with states, in order.
  const std::vector<StateExtent>& states() const { return states_; }
  bool has_states() const { return !states_.empty(); }
  int64_t lane_bytes() const { return lane_bytes_; }
  const LayerInGroup& layer_in_group(int64_t layer) const {
    return layers_[static_cast<size_t>(layer)];
  }

  // The group whose tokens count as the sequence's: the first one with the largest capacity.
  int64_t main_group(const Window& sequence) const;
  // What that group keeps: the sequence's own sinks and window unless all layers have windows of
  // their own.
  Window main_window(const Window& sequence) const;
  // How many of its last tokens determine, together with the sinks, what a sequence of any length
  // has in its cache: Note [Reach]. kNoReach: all of them.
  int64_t reach(const Window& sequence) const;
  // The index from which a sequence must read its tokens again to have the same cache as after
  // `length` tokens, bit for bit: 0, S, or above S. It still has the sinks if it is not 0. There,
  // its states may be zeros: what that changes is forgotten again.
  int64_t first_to_read(const Window& sequence, int64_t length) const;
  // The maximum memory that a sequence of this capacity needs, however it is divided into sinks and
  // window, as long as the same layers keep windows of their own.
  MemoryAmount most_memory(const Window& sequence) const;

 private:
  std::vector<CacheGroup> groups_;
  std::vector<PageShape> shapes_;
  std::vector<StateExtent> states_;
  int64_t lane_bytes_ = 0;
  int64_t states_reach_ = 0;          // of all of them together; kNoReach: all tokens
  std::vector<LayerInGroup> layers_;  // [layers]
};

}  // namespace sinkstream
