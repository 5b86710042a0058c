// A fixed number of pages, all of one shape, lent to sequences. Knows no tokens.
// Not thread-safe: one thread owns the pool and everything that holds its pages.
//
// Note: [Shared pages]
// Sequences with a common beginning hold the same pages until one of them writes. So that writing
// never runs out of memory half-way, each holder after the first brings a free page along, a spare.
// The spare belongs to the shared page, not to who brought it: the first holder that writes takes a
// copy in it, and with the last but one holder the last spare is gone. A page that none of its
// holders will write again, one full of sinks, is shared without spares; that is where sharing
// saves memory. Of the holders of one page either all may write or none.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/page_memory.h"
#include "kernels/page.h"

namespace sinkstream {

class PagePool {
 public:
  // Takes the memory of `pages` pages at once. With `poison`, pages hold NaN until they are
  // written and after they are returned, and rows once they are evicted, so that a row read by
  // mistake shows itself. `threads` may help to take the memory.
  PagePool(PageShape shape, int64_t pages, bool poison = false, ThreadPool* threads = nullptr);
  // In memory of the caller's choice, which holds that many pages.
  PagePool(PageShape shape, int64_t pages, std::unique_ptr<PageMemory> memory, bool poison = false);

  const PageShape& shape() const { return shape_; }
  bool poisons() const { return poison_; }
  int64_t pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t shared_pages() const { return shared_; }  // with more than one holder
  int64_t spare_pages() const { return spares_; }   // set aside, without a holder
  int64_t bytes() const { return memory_->bytes(); }
  PageMemory& memory() const { return *memory_; }
  std::byte* page(int32_t id) const { return memory_->data() + id * shape_.bytes(); }

  // The pages are needed no more.
  void release() { memory_->release(); }

  // Lends one page; the caller has seen that `free_pages()` suffices.
  int32_t acquire();
  // One more holder of a page that nobody will write again.
  void share(int32_t id);
  // One more holder of a page that any of them may write to. Sets a free page aside for it; the
  // caller has seen that there is one.
  void share_for_writing(int32_t id);
  // Lends one page with the content of another; the caller has seen that there is a free one.
  int32_t copy(int32_t id);
  int32_t holders(int32_t id) const { return references_.at(id); }
  bool has_spare(int32_t id) const { return spare_.at(id) >= 0; }
  // Gives one of the holders a page of its own with the same content: this one, if nobody else
  // holds it; else a copy in a spare, or where there is none in a free page, and the caller holds
  // `id` no more.
  int32_t own(int32_t id);
  // One holder less, and one spare if there is any; the last holder returns the page.
  void release(int32_t id);

 private:
  void drop_holder(int32_t id);
  void return_page(int32_t id);
  int32_t pop_spare(int32_t id);

  PageShape shape_;
  std::unique_ptr<PageMemory> memory_;
  bool poison_;
  std::vector<int32_t> references_;  // [pages], holders of each
  std::vector<int32_t> spare_;       // [pages], the next spare behind a page or spare; -1: none
  int64_t spares_ = 0;
  std::vector<int32_t> free_;  // the next page to lend is at the back
  int64_t shared_ = 0;
};

// Whether SINKSTREAM_POISON_PAGES asks for poisoned pages (any value but empty and 0).
bool poison_from_environment();

}  // namespace sinkstream
