// Amounts of cache memory by kind: what a sequence needs, what is free, what there is. Plain
// numbers; knows nothing about pools.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string>

#include "common/check.h"

namespace sinkstream {

struct MemoryAmount {
  // How many page shapes the layers of one model may have: most have one, some have another one in
  // the layers that see the whole window.
  static constexpr size_t kMostShapes = 4;

  std::array<int64_t, kMostShapes> pages{};  // of each shape (CacheLayers::shapes())
  int64_t states = 0;                        // slots, each of a sequence's states

  int64_t all_pages() const { return std::accumulate(pages.begin(), pages.end(), int64_t{0}); }
  // Whether `free` has that much of every kind.
  bool fits_in(const MemoryAmount& free) const {
    return states <= free.states &&
           std::ranges::equal(pages, free.pages, [](int64_t a, int64_t b) { return a <= b; });
  }

  MemoryAmount& operator+=(const MemoryAmount& other) { return add(other, 1); }
  MemoryAmount& operator-=(const MemoryAmount& other) { return add(other, -1); }
  friend MemoryAmount operator-(MemoryAmount a, const MemoryAmount& b) { return a -= b; }
  friend MemoryAmount operator*(int64_t count, const MemoryAmount& each) {
    return MemoryAmount().add(each, count);
  }
  bool operator==(const MemoryAmount&) const = default;

 private:
  MemoryAmount& add(const MemoryAmount& other, int64_t count) {
    for (size_t shape = 0; shape < kMostShapes; ++shape) pages[shape] += count * other.pages[shape];
    states += count * other.states;
    return *this;
  }
};

// Such as "6 pages", or "6 + 3 pages and 1 state slot" of two shapes.
inline std::string describe(const MemoryAmount& amount) {
  std::string pages = cat(amount.pages[0]);
  for (size_t shape = 1; shape < MemoryAmount::kMostShapes; ++shape) {
    if (amount.pages[shape] != 0) pages += cat(" + ", amount.pages[shape]);
  }
  pages += " pages";
  if (amount.states != 0) {
    pages += cat(" and ", amount.states, amount.states == 1 ? " state slot" : " state slots");
  }
  return pages;
}

}  // namespace sinkstream
