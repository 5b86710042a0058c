// The pools of a model's sequences, or of one ForwardCache's rows, with their memory.
#pragma once

#include <vector>

#include "cache/memory_pools.h"

namespace sinkstream {

struct OwnedPools {
  std::vector<PagePool> pages;  // of each of CacheLayers::shapes()

  // Valid until this is moved.
  MemoryPools pools() {
    MemoryPools pools;
    for (size_t shape = 0; shape < pages.size(); ++shape) pools.pages[shape] = &pages[shape];
    return pools;
  }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const PagePool& pool : pages) bytes += pool.bytes();
    return bytes;
  }
  // Frees the memory. It must not be used afterwards.
  void release() {
    for (PagePool& pool : pages) pool.release();
  }
};

}  // namespace sinkstream
