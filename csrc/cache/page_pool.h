// A fixed number of pages of one shape, lent to sequences. Knows nothing about tokens. Not
// thread-safe: one thread owns the pool and everything that holds its pages.
//
// Note: [Shared pages]
// Sequences with a common prefix hold the same pages until one of them writes. So that a write
// never runs out of memory, each holder after the first sets a free page aside as a spare. The
// spare belongs to the shared page, not to the holder that set it aside: the first holder that
// writes copies the page to a spare, and when only one holder is left, no spares are left either. A
// page full of sinks, which no holder will write again, is shared without spares; that is where
// sharing saves memory. Either all holders of a page may write to it, or none may.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/page_memory.h"
#include "kernels/page.h"

namespace sinkstream {

class PagePool {
 public:
  // Allocates `pages` pages up front. With `poison`, pages hold NaN until they are written and
  // after they are returned, and rows hold NaN once they are evicted, so that reading one by
  // mistake shows up. `threads`, if not null, speed up the allocation.
  PagePool(PageShape shape, int64_t pages, bool poison = false, ThreadPool* threads = nullptr);
  // In the caller's memory, which has room for that many pages.
  PagePool(PageShape shape, int64_t pages, std::unique_ptr<PageMemory> memory, bool poison = false);

  const PageShape& shape() const { return shape_; }
  bool poisons() const { return poison_; }
  int64_t pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t shared_pages() const { return shared_; }  // with more than one holder
  int64_t spare_pages() const { return spares_; }   // set aside: Note [Shared pages]
  int64_t bytes() const { return memory_->bytes(); }
  PageMemory& memory() const { return *memory_; }
  std::byte* page(int32_t id) const { return memory_->data() + id * shape_.bytes(); }

  // Frees the memory. The pages must not be used afterwards.
  void release() { memory_->release(); }

  // Lends a page; the caller has checked that one is free.
  int32_t acquire();
  // Adds a holder to a page that no holder will write again.
  void share(int32_t id);
  // Adds a holder to a page that any holder may write to. Sets a free page aside for it; the caller
  // has checked that one is free.
  void share_for_writing(int32_t id);
  // Lends a page with the content of another; the caller has checked that one is free.
  int32_t copy(int32_t id);
  int32_t holders(int32_t id) const { return references_.at(id); }
  bool has_spare(int32_t id) const { return spare_.at(id) >= 0; }
  // Gives a holder of `id` a page of its own with the same content: `id` itself if it is the only
  // holder. Otherwise a copy, in a spare or, if there is none, in a free page; then the caller no
  // longer holds `id`.
  int32_t own(int32_t id);
  // Removes a holder, and a spare if there is one; the last holder returns the page.
  void release(int32_t id);

 private:
  void drop_holder(int32_t id);
  void return_page(int32_t id);
  int32_t pop_spare(int32_t id);

  PageShape shape_;
  std::unique_ptr<PageMemory> memory_;
  bool poison_;
  std::vector<int32_t> references_;  // [pages], holders of each
  std::vector<int32_t> spare_;       // [pages], the next spare of a page or spare; -1: none
  int64_t spares_ = 0;
  std::vector<int32_t> free_;  // the next page to lend is at the back
  int64_t shared_ = 0;
};

// Whether SINKSTREAM_POISON_PAGES is set to anything but empty and 0.
bool poison_from_environment();

}  // namespace sinkstream
