// The pools that caches take their memory from: one for each page shape. Owns none of them.
#pragma once

#include <array>

#include "cache/memory_amount.h"
#include "cache/page_pool.h"

namespace sinkstream {

struct MemoryPools {
  MemoryPools() = default;
  // Of a model whose layers all have pages of one shape.
  MemoryPools(PagePool* only) : pages{only} {}  // NOLINT(google-explicit-constructor)

  std::array<PagePool*, MemoryAmount::kMostShapes> pages{};  // of each shape; null: no such shape

  MemoryAmount all() const {
    return amount([](const PagePool& pool) { return pool.pages(); });
  }
  MemoryAmount free() const {
    return amount([](const PagePool& pool) { return pool.free_pages(); });
  }
  // Pages with more than one holder.
  MemoryAmount shared() const {
    return amount([](const PagePool& pool) { return pool.shared_pages(); });
  }
  int64_t bytes_of(const MemoryAmount& amount) const {
    int64_t bytes = 0;
    for (size_t shape = 0; shape < pages.size(); ++shape) {
      if (pages[shape] != nullptr) bytes += amount.pages[shape] * pages[shape]->shape().bytes();
    }
    return bytes;
  }

 private:
  template <typename Count>
  MemoryAmount amount(const Count& count) const {
    MemoryAmount found;
    for (size_t shape = 0; shape < pages.size(); ++shape) {
      if (pages[shape] != nullptr) found.pages[shape] = count(*pages[shape]);
    }
    return found;
  }
};

}  // namespace sinkstream
