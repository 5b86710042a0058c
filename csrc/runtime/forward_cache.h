// A cache for LoadedModel::forward: one sequence for each row of a batch, in pages of its own.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "cache/sequence_cache.h"

namespace sinkstream {

struct ForwardCache {
  static int64_t pages_needed(const CacheLayers& layers, const Window& window, int64_t batch,
                              int64_t max_length) {
    return batch * SequenceCache::pages_needed(window, layers, max_length);
  }

  // `pages` has pages_needed() pages, all free.
  ForwardCache(int64_t model, PagePool&& pages, const CacheLayers& layers, const Window& window,
               int64_t batch, int64_t max_length)
      : model(model), asked(window), pool(std::move(pages)) {
    for (int64_t i = 0; i < batch; ++i) {
      rows.push_back(std::make_unique<SequenceCache>(&pool, window, layers, max_length));
    }
  }

  // An independent copy.
  ForwardCache(const ForwardCache& other, PagePool&& pages, const CacheLayers& layers)
      : ForwardCache(other.model, std::move(pages), layers, other.asked, other.batch(),
                     other.row().max_length()) {
    for (int64_t i = 0; i < batch(); ++i) rows[i]->copy_from(*other.rows[i]);
  }

  int64_t batch() const { return static_cast<int64_t>(rows.size()); }
  const SequenceCache& row() const { return *rows.front(); }  // all rows have the same length

  const int64_t model;  // LoadedModel::serial() of the model that made it
  const Window asked;   // S and W as it was made with
  PagePool pool;
  std::vector<std::unique_ptr<SequenceCache>> rows;  // [batch]
  std::atomic<bool> busy{false};                     // a forward pass is using it
};

}  // namespace sinkstream
