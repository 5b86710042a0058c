// The pools of a model's sequences, or of one ForwardCache's rows, with their memory.
#pragma once

#include <optional>
#include <vector>

#include "cache/memory_pools.h"

namespace sinkstream {

struct OwnedPools {
  std::vector<PagePool> pages;      // of each of CacheLayers::shapes()
  std::optional<StatePool> states;  // none if no layer has a state

  // Valid until this is moved.
  MemoryPools pools() {
    MemoryPools pools;
    for (size_t shape = 0; shape < pages.size(); ++shape) pools.pages[shape] = &pages[shape];
    if (states) pools.states = &*states;
    return pools;
  }
  int64_t bytes() const {
    int64_t bytes = states ? states->bytes() : 0;
    for (const PagePool& pool : pages) bytes += pool.bytes();
    return bytes;
  }
  // Frees the memory. It must not be used afterwards.
  void release() {
    for (PagePool& pool : pages) pool.release();
    if (states) states->release();
  }
};

}  // namespace sinkstream
