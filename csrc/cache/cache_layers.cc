#include "cache/cache_layers.h"

#include <algorithm>

#include "common/check.h"

namespace sinkstream {

CacheLayers::CacheLayers(int64_t count)
    : CacheLayers(with_windows(std::vector<int64_t>(static_cast<size_t>(count)))) {}

CacheLayers CacheLayers::with_windows(std::span<const int64_t> own_windows) {
  CacheLayers layers;
  for (size_t layer = 0; layer < own_windows.size(); ++layer) {
    const int64_t own_window = own_windows[layer];
    SINKSTREAM_CHECK(own_window >= 0, "layer ", layer, " has a window of ", own_window);
    auto group = std::find_if(layers.groups_.begin(), layers.groups_.end(),
                              [&](const auto& other) { return other.own_window == own_window; });
    if (group == layers.groups_.end()) {
      layers.groups_.push_back({.own_window = own_window, .layers = {}});
      group = layers.groups_.end() - 1;
    }
    layers.layers_.push_back({.group = group - layers.groups_.begin(), .layer = group->count()});
    group->layers.push_back(static_cast<int64_t>(layer));
  }
  SINKSTREAM_CHECK(layers.count() >= 1, "a model has no layers");
  return layers;
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

int64_t CacheLayers::most_pages(const Window& sequence) const {
  const Window largest = main_window(sequence);
  int64_t pages = 0;
  for (const CacheGroup& group : groups_) {
    const Window window = group.window_of(sequence);
    const bool is_smaller = window.capacity() < largest.capacity();
    pages += group.count() * (is_smaller ? window.window_pages() : window.most_pages());
  }
  return pages;
}

}  // namespace sinkstream
