// A cache for LoadedModel::forward: one sequence for each row of a batch, in pages of its own.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "cache/sequence_cache.h"
#include "runtime/owned_pools.h"

namespace sinkstream {

struct ForwardCache {
  static MemoryAmount memory_needed(const CacheLayers& layers, const Window& window, int64_t batch,
                                    int64_t max_length) {
    return batch * SequenceCache::memory_needed(window, layers, max_length);
  }

  // `owned` has memory_needed(), all free.
  ForwardCache(int64_t model, OwnedPools&& owned, const CacheLayers& layers, const Window& window,
               int64_t batch, int64_t max_length)
      : model(model), asked(window), memory(std::move(owned)) {
    for (int64_t i = 0; i < batch; ++i) {
      rows.push_back(std::make_unique<SequenceCache>(memory.pools(), window, layers, max_length));
    }
  }

  // An independent copy.
  ForwardCache(const ForwardCache& other, OwnedPools&& owned, const CacheLayers& layers)
      : ForwardCache(other.model, std::move(owned), layers, other.asked, other.batch(),
                     other.row().max_length()) {
    for (int64_t i = 0; i < batch(); ++i) rows[i]->copy_from(*other.rows[i]);
  }

  int64_t batch() const { return static_cast<int64_t>(rows.size()); }
  const SequenceCache& row() const { return *rows.front(); }  // all rows have the same length

  const int64_t model;  // LoadedModel::serial() of the model that made it
  const Window asked;   // S and W as it was made with
  OwnedPools memory;
  std::vector<std::unique_ptr<SequenceCache>> rows;  // [batch]
  std::atomic<bool> busy{false};                     // a forward pass is using it
};

}  // namespace sinkstream
