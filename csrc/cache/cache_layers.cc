#include "cache/cache_layers.h"

#include <algorithm>

#include "common/check.h"

namespace sinkstream {

CacheLayers::CacheLayers(int64_t count)
    : CacheLayers(std::vector<LayerMemory>(static_cast<size_t>(count))) {}

CacheLayers::CacheLayers(std::span<const LayerMemory> layers) {
  SINKSTREAM_CHECK(!layers.empty(), "a model has no layers");
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const int64_t own_window = layers[layer].own_window;
    const PageShape& page = layers[layer].page;
    SINKSTREAM_CHECK(own_window >= 0, "layer ", layer, " has a window of ", own_window);
    const auto same_shape = std::ranges::find_if(shapes_, [&](const PageShape& other) {
      return other.kv_heads == page.kv_heads && other.head_dim == page.head_dim;
    });
    const auto shape = static_cast<size_t>(same_shape - shapes_.begin());
    if (same_shape == shapes_.end()) shapes_.push_back(page);
    auto group = std::ranges::find_if(groups_, [&](const CacheGroup& other) {
      return other.own_window == own_window && other.shape == shape;
    });
    if (group == groups_.end()) {
      group = groups_.insert(group, {.own_window = own_window, .shape = shape, .layers = {}});
    }
    layers_.push_back({.group = group - groups_.begin(), .layer = group->count()});
    group->layers.push_back(static_cast<int64_t>(layer));
  }
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

MemoryAmount CacheLayers::most_memory(const Window& sequence) const {
  const Window largest = main_window(sequence);
  MemoryAmount most;
  for (const CacheGroup& group : groups_) {
    const Window window = group.window_of(sequence);
    const bool is_smaller = window.capacity() < largest.capacity();
    most.pages[group.shape] +=
        group.count() * (is_smaller ? window.window_pages() : window.most_pages());
  }
  return most;
}

}  // namespace sinkstream
