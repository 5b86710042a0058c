// A fixed number of pages, all of one shape, lent to sequences. Knows no tokens.
// Not thread-safe: one thread owns the pool and everything that holds its pages.
#pragma once

#include <cstdint>
#include <vector>

#include "device/buffer.h"
#include "kernels/page.h"

namespace sinkstream {

class PagePool {
 public:
  // Takes the memory of `pages` pages at once. With `poison`, pages hold NaN until they are
  // written and after they are returned, and rows once they are evicted, so that a row read by
  // mistake shows itself.
  PagePool(PageShape shape, int64_t pages, bool poison = false);

  const PageShape& shape() const { return shape_; }
  bool poisons() const { return poison_; }
  int64_t pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int32_t holders(int64_t id) const { return references_.at(static_cast<size_t>(id)); }
  int64_t bytes() const { return memory_.bytes(); }
  std::byte* page(int32_t id) const { return memory_.data() + id * shape_.bytes(); }

  // The pages are needed no more.
  void give_back() { memory_.give_back(); }

  // Lends one page; the caller has seen that `free_pages()` suffices.
  int32_t acquire();
  // One more holder of a page.
  void share(int32_t id);
  // One holder less; the last one returns the page.
  void release(int32_t id);

 private:
  PageShape shape_;
  Buffer memory_;
  bool poison_;
  std::vector<int32_t> references_;  // [pages], holders of each
  std::vector<int32_t> free_;        // the next page to lend is at the back
};

// Whether SINKSTREAM_POISON_PAGES asks for poisoned pages (any value but empty and 0).
bool poison_from_environment();

}  // namespace sinkstream
