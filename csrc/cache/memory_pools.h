// The pools that caches take their memory from: one for each page shape, and one of states. Owns
// none of them.
#pragma once

#include <array>

#include "cache/memory_amount.h"
#include "cache/page_pool.h"
#include "cache/state_pool.h"

namespace sinkstream {

struct MemoryPools {
  MemoryPools() = default;
  // Of a model whose layers all have pages of one shape.
  MemoryPools(PagePool* only) : pages{only} {}  // NOLINT(google-explicit-constructor)

  std::array<PagePool*, MemoryAmount::kMostShapes> pages{};  // of each shape; null: no such shape
  StatePool* states = nullptr;                               // null: no layer has a state

  MemoryAmount all() const {
    MemoryAmount all = amount([](const PagePool& pool) { return pool.pages(); });
    if (states != nullptr) all.states = states->slots();
    return all;
  }
  MemoryAmount free() const {
    MemoryAmount free = amount([](const PagePool& pool) { return pool.free_pages(); });
    if (states != nullptr) free.states = states->free_slots();
    return free;
  }
  // Pages with more than one holder.
  MemoryAmount shared() const {
    return amount([](const PagePool& pool) { return pool.shared_pages(); });
  }
  int64_t bytes_of(const MemoryAmount& amount) const {
    int64_t bytes = states == nullptr ? 0 : amount.states * states->slot_bytes();
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
