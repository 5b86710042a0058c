// Which tokens the layers of a model keep: layers with one rule form a group. Pure arithmetic.
//
// Note: [Cache groups]
// A layer that was trained with a window w of its own keeps the last w tokens and no sinks, as long
// as w is at most the sequence's window W: that is the trained layer, forever. Any other layer
// keeps the sequence's sinks and window, and so does one with w above W. What follows from a
// layer's rule (its rank, the oldest token that a query sees, its pages, its cuts) exists once per
// group. The live and evicted tokens of a sequence are those of its largest group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/window.h"

namespace sinkstream {

// Layers that keep the same tokens.
struct CacheGroup {
  int64_t own_window = 0;       // w, the current token included; 0: none
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

class CacheLayers {
 public:
  struct LayerInGroup {
    int64_t group = 0;
    int64_t layer = 0;  // among the group's
  };

  // `count` >= 1 layers that all keep the sinks and the window.
  CacheLayers(int64_t count);  // NOLINT(google-explicit-constructor): the number says it all
  // [layers]: the own window of each, 0 for none. Groups are in the order of their first layers.
  static CacheLayers with_windows(std::span<const int64_t> own_windows);

  int64_t count() const { return static_cast<int64_t>(layers_.size()); }
  int64_t group_count() const { return static_cast<int64_t>(groups_.size()); }
  const std::vector<CacheGroup>& groups() const { return groups_; }
  const LayerInGroup& layer_in_group(int64_t layer) const {
    return layers_[static_cast<size_t>(layer)];
  }

  // The group whose tokens count as the sequence's: the first one with the largest capacity.
  int64_t main_group(const Window& sequence) const;
  // What that group keeps: the sequence's own sinks and window unless all layers have windows of
  // their own.
  Window main_window(const Window& sequence) const;
  // The maximum number of pages of all layers that a sequence of this capacity needs, however it is
  // divided into sinks and window, as long as the same layers keep windows of their own.
  int64_t most_pages(const Window& sequence) const;

 private:
  CacheLayers() = default;

  std::vector<CacheGroup> groups_;
  std::vector<LayerInGroup> layers_;  // [layers]
};

}  // namespace sinkstream
