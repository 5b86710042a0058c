// One sequence's keys, values and states: its length, for each group of layers its window and its
// pages, and its slot of states, all held for its lifetime. Leaves the values to kernels, which
// read and write them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/cache_layers.h"
#include "cache/memory_pools.h"
#include "cache/window.h"
#include "kernels/append.h"

namespace sinkstream {

// The pages of one group of layers: Note [Cache groups].
struct GroupPages {
  Window window;             // what its layers keep, cuts included
  PagePool* pool = nullptr;  // where its pages come from
  size_t pool_number = 0;    // of MemoryPools::pages
  int64_t layers = 0;
  int64_t sink_page_count = 0;
  int64_t window_page_count = 0;  // the ring
  int64_t offset = 0;  // among the sequence's pages: [layers][sink pages, then window pages]

  const PageShape& shape() const { return pool->shape(); }
  int64_t pages_per_layer() const { return sink_page_count + window_page_count; }
  int64_t pages() const { return layers * pages_per_layer(); }
  // The number of a token's page among a layer's.
  int64_t page_ordinal(int64_t index) const {
    if (window.is_sink(index)) return index / kPageRows;
    return sink_page_count + window.block(index) % window_page_count;
  }
  // Its row in that page.
  int64_t row(int64_t index) const {
    return window.is_sink(index) ? index % kPageRows : window.row(index);
  }
  // The number of a page among the sequence's. `layer` counts the group's.
  int64_t page(int64_t layer, int64_t ordinal) const {
    return offset + layer * pages_per_layer() + ordinal;
  }
};

class SequenceCache {
 public:
  // The memory of all layers for a sequence that will never hold more than `max_length` tokens.
  static MemoryAmount memory_needed(const Window& window, const CacheLayers& layers,
                                    int64_t max_length);

  // Takes that much; the caller has checked that it is free. The pools outlive the cache. `window`:
  // the sinks and the window of the sequence.
  SequenceCache(const MemoryPools& pools, const Window& window, const CacheLayers& layers,
                int64_t max_length);

  // How much of that a sequence saves by starting with `count` tokens of another one: pages full of
  // sinks, which neither will write again.
  static MemoryAmount memory_saved(const Window& window, const CacheLayers& layers, int64_t count);

  // Starts with the first `count` tokens of `other`, and with its sinks and window. `count` is the
  // length of `other`, or `shareable()` of a common prefix. Shares their pages until one of the two
  // writes to them. Takes memory_needed − memory_saved up front, so that a later write never fails.
  SequenceCache(const SequenceCache& other, int64_t max_length, int64_t count);
  ~SequenceCache();
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  const Window& window() const { return group(main_).window; }  // of the largest group
  int64_t group_count() const { return std::ssize(groups_); }
  const GroupPages& group(int64_t group) const { return groups_[static_cast<size_t>(group)]; }
  int64_t layers() const { return std::ssize(layers_); }
  int64_t length() const { return length_; }  // tokens appended so far: the next token's index
  int64_t in_flight() const { return in_flight_; }  // tokens launched after them, not yet delivered
  int64_t next_index() const { return length_ + in_flight_; }  // of the next token to launch
  int64_t max_length() const { return max_length_; }
  int64_t live() const { return window().live(length_); }
  int64_t evicted() const { return window().evicted(length_); }
  MemoryAmount held() const;  // shared pages included
  int64_t bytes() const { return pools_.bytes_of(held()); }
  // The pages of a group, in its pool.
  std::span<const int32_t> page_ids(const GroupPages& group) const {
    return std::span(ids_).subspan(static_cast<size_t>(group.offset),
                                   static_cast<size_t>(group.pages()));
  }

  // [sink_page_count] and [window_page_count] of the layer's group, as attention reads them.
  const std::byte* const* sink_pages(int64_t layer) const {
    return pages_.data() + first_page(layer);
  }
  const std::byte* const* window_pages(int64_t layer) const {
    return sink_pages(layer) + group_of(layer).sink_page_count;
  }
  bool has_pages(int64_t layer) const {
    return layers_[static_cast<size_t>(layer)].group != CacheLayers::kNoGroup;
  }
  const GroupPages& group_of(int64_t layer) const {
    return group(layers_[static_cast<size_t>(layer)].group);
  }
  // The slot of the token at `index`.
  Slot slot(int64_t layer, int64_t index) const;

  // A layer's state: read by a step that appends tokens from `index` on, and where that step writes
  // the state after its last token. `index` is next_index() when the step is launched.
  struct StateLanes {
    const std::byte* read;
    std::byte* write;
  };
  StateLanes state(int64_t layer, int64_t index) const;
  const StateSlot* states() const { return states_ ? &*states_ : nullptr; }  // null: there are none
  const std::vector<StateExtent>& state_extents() const { return state_extents_; }

  // How many of the first tokens another sequence may start with: all, as long as the next token
  // sees all of them in every layer; later the sinks, which depend on no other token, or none if
  // some layers keep none. Tokens in flight count as seen: they may have overwritten what left the
  // window.
  int64_t shareable() const;
  // The same of a prefix of `common` tokens, at most shareable(): with states, only as many as a
  // lane stands for.
  int64_t shareable(int64_t common) const {
    return states_ ? std::max<int64_t>(states_->longest(common), 0) : common;
  }
  // Makes this sequence the only holder of the pages that the next `count` tokens, from
  // next_index() on, will be written to. Call it before a forward pass if pages may be shared.
  void make_writable(int64_t count);

  // ---- its length: Note [Who moves a length] of model/step_runner.h ----

  // Records that a step that writes the next `count` tokens to every layer has been launched.
  void add_in_flight(int64_t count);
  // Keeps the first `count` tokens in flight: they now count in length().
  void commit_in_flight(int64_t count);
  // Discards the tokens in flight: later tokens overwrite their rows.
  void drop_in_flight();
  // Both at once, for a caller that has no step in flight and keeps all `count` tokens.
  void advance(int64_t count) {
    add_in_flight(count);
    commit_in_flight(count);
  }

  // Drops all tokens and keeps the pages.
  void restart();
  // Keeps the states as they are now, so that the tokens that follow can be dropped, until the next
  // call. No token is in flight.
  void keep_states();
  // Whether the tokens from index `length` on can be dropped: nothing that the token at that index
  // would see in any layer has been evicted, and a lane of the states stands for that length.
  bool can_rewind(int64_t length) const;
  // Drops them. Returns false, and does nothing, if shared sinks would have to be rewritten and no
  // page is free for them.
  bool rewind(int64_t length);
  // Drops all tokens but the sinks, and the states; the next token has this index, which is at most
  // length(). With index 0, drops the sinks, too. Returns false like `rewind`.
  bool restart_at(int64_t index);
  // Evicts the window tokens before `index`, which is in [first(length()), length()], from every
  // layer.
  void cut(int64_t index);
  // The same in one group; `index` is in [first(length()), length()] of that group.
  void cut_group(int64_t group, int64_t index);
  // Makes room for `count` tokens, so that all of them see the same earlier tokens: if they do not
  // fit, evicts in advance what would be evicted while they are processed. Throws InvalidArgument
  // if the window is too small for `count`.
  void evict_for_space(int64_t count);
  // Copies the tokens of `other`, which has the same geometry.
  void copy_from(const SequenceCache& other);
  // Sets the index of the next token, as if all tokens before it had been seen and all but the
  // sinks evicted. For tests of very long streams; `length()` must be at least S.
  void jump(int64_t index);
  // Turns a cache without tokens into one of `length` tokens whose groups were cut at `begins`. The
  // rows of the live tokens, and the states in the head, must already be written (snapshot.h).
  void resume(int64_t length, std::span<const int64_t> begins);

 private:
  // Fills in the page counts of groups_, for max_length_.
  void count_pages();
  // The layer's first page, in ids_ and pages_.
  int64_t first_page(int64_t layer) const {
    return group_of(layer).page(layers_[static_cast<size_t>(layer)].layer, 0);
  }
  void reserve();
  void add_page(const GroupPages& group, int32_t id);
  void share_pages(const GroupPages& group, const SequenceCache& other, const GroupPages& others,
                   const std::vector<int64_t>& theirs);
  void own_page(const GroupPages& group, int64_t page);
  bool own_sinks_from(int64_t length);
  // If the pool poisons: sets the group's evicted window tokens [begin, end) to NaN, except rows
  // that have been overwritten.
  void poison(const GroupPages& group, int64_t begin, int64_t end);

  MemoryPools pools_;
  int64_t max_length_;
  int64_t main_ = 0;  // the largest group
  int64_t length_ = 0;
  int64_t in_flight_ = 0;
  std::vector<GroupPages> groups_;
  std::vector<CacheLayers::LayerInGroup> layers_;
  std::vector<StateExtent> state_extents_;  // of each layer with a state
  std::optional<StateSlot> states_;         // none if no layer has a state
  std::vector<int32_t> ids_;                // of each group's pages, in order
  std::vector<std::byte*> pages_;           // the same, as addresses
};

}  // namespace sinkstream
