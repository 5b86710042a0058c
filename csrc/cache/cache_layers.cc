#include "cache/cache_layers.h"

#include <algorithm>

#include "common/check.h"

namespace sinkstream {

namespace {

// Each layer's states begin at a multiple of this, as kernels read them.
constexpr int64_t kStateAlignment = 64;

}  // namespace

CacheLayers::CacheLayers(int64_t count)
    : CacheLayers(std::vector<LayerMemory>(static_cast<size_t>(count))) {}

CacheLayers::CacheLayers(std::span<const LayerMemory> layers) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const LayerMemory& memory = layers[layer];
    if (memory.state_bytes > 0) {
      layers_.push_back({.group = kNoGroup, .layer = std::ssize(states_)});
      states_.push_back({.offset = lane_bytes_, .bytes = memory.state_bytes});
      lane_bytes_ += divide_up(memory.state_bytes, kStateAlignment) * kStateAlignment;
      const bool has_reach = states_reach_ != kNoReach && memory.state_reach > 0;
      states_reach_ = has_reach ? states_reach_ + memory.state_reach : kNoReach;
      continue;
    }
    const PageShape& page = memory.page;
    SINKSTREAM_CHECK(memory.own_window >= 0, "layer ", layer, " has a window of ",
                     memory.own_window);
    const auto same_shape = std::ranges::find_if(shapes_, [&page](const PageShape& other) {
      return other.kv_heads == page.kv_heads && other.head_dim == page.head_dim;
    });
    const auto shape = static_cast<size_t>(same_shape - shapes_.begin());
    if (same_shape == shapes_.end()) shapes_.push_back(page);
    auto group = std::ranges::find_if(groups_, [&memory, shape](const CacheGroup& other) {
      return other.own_window == memory.own_window && other.shape == shape;
    });
    if (group == groups_.end()) {
      group =
          groups_.insert(group, {.own_window = memory.own_window, .shape = shape, .layers = {}});
    }
    layers_.push_back({.group = group - groups_.begin(), .layer = group->count()});
    group->layers.push_back(static_cast<int64_t>(layer));
  }
  SINKSTREAM_CHECK(!groups_.empty(), "a model has no layers with pages");
  SINKSTREAM_CHECK(shapes_.size() <= MemoryAmount::kMostShapes, "a model has pages of ",
                   shapes_.size(), " shapes");
}

int64_t CacheLayers::main_group(const Window& sequence) const {
  const auto largest = std::max_element(
      groups_.begin(), groups_.end(), [&](const CacheGroup& a, const CacheGroup& b) {
        return a.window_of(sequence).capacity() < b.window_of(sequence).capacity();
      });
  return largest - groups_.begin();
}

Window CacheLayers::main_window(const Window& sequence) const {
  return groups_[static_cast<size_t>(main_group(sequence))].window_of(sequence);
}

int64_t CacheLayers::reach(const Window& sequence) const {
  if (states_reach_ == kNoReach) return kNoReach;
  int64_t reach = 1 + states_reach_;
  for (const CacheGroup& group : groups_)
    reach += group.count() * (group.window_of(sequence).window - 1);
  return reach;
}

int64_t CacheLayers::first_to_read(const Window& sequence, int64_t length) const {
  const int64_t reach = this->reach(sequence);
  if (reach == kNoReach) return 0;
  const int64_t begin = length - reach;
  if (begin > sequence.sinks) return begin;
  if (has_states()) return 0;  // none is kept of the sinks
  const bool all_keep_sinks = std::ranges::all_of(groups_, [&](const CacheGroup& group) {
    return group.window_of(sequence).sinks == sequence.sinks;
  });
  return all_keep_sinks && length > sequence.sinks ? sequence.sinks : 0;
}

MemoryAmount CacheLayers::most_memory(const Window& sequence) const {
  const Window largest = main_window(sequence);
  MemoryAmount most{.states = has_states() ? 1 : 0};
  for (const CacheGroup& group : groups_) {
    const Window window = group.window_of(sequence);
    const bool is_smaller = window.capacity() < largest.capacity();
    most.pages[group.shape] +=
        group.count() * (is_smaller ? window.window_pages() : window.most_pages());
  }
  return most;
}

}  // namespace sinkstream
