// One sequence's keys and values: its window, how many tokens it has seen, and its pages in every
// layer, which it holds for life. Knows no numbers: kernels read and write the pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "cache/window.h"
#include "kernels/append.h"

namespace sinkstream {

class SequenceCache {
 public:
  // Pages of all layers for a sequence that will never hold more than `max_length` tokens.
  static int64_t pages_needed(const Window& window, int64_t layers, int64_t max_length);

  // Takes that many pages; the caller has seen that they are free. The pool outlives the cache.
  SequenceCache(PagePool* pool, const Window& window, int64_t layers, int64_t max_length);
  ~SequenceCache();
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  const Window& window() const { return window_; }
  int64_t length() const { return length_; }  // tokens appended so far: the next token's index
  int64_t max_length() const { return max_length_; }
  int64_t live() const { return window_.live(length_); }
  int64_t evicted() const { return window_.evicted(length_); }
  int64_t sink_page_count() const { return sink_page_count_; }
  int64_t window_page_count() const { return window_page_count_; }
  std::span<const int32_t> page_ids() const { return ids_; }  // all that it holds

  // [sink_page_count()] and [window_page_count()], as attention reads them.
  const std::byte* const* sink_pages(int64_t layer) const {
    return pages_.data() + layer * pages_per_layer();
  }
  const std::byte* const* window_pages(int64_t layer) const {
    return sink_pages(layer) + sink_page_count_;
  }
  // Where the token of this index belongs.
  Slot slot(int64_t layer, int64_t index) const;

  // `count` tokens have been written to every layer.
  void advance(int64_t count);
  // Forgets all tokens and keeps the pages.
  void restart();
  // Window tokens before `index` are seen no more; `index` is in [first(length()), length()].
  void cut(int64_t index);
  // Makes room for `count` tokens that shall see no less than the tokens before them: where they
  // do not fit beside what is cached, evicts now what would leave while they are read. Throws
  // InvalidArgument for a count that no window has room for.
  void evict_for_space(int64_t count);
  // Takes over the tokens of `other`, which has the same geometry.
  void copy_from(const SequenceCache& other);
  // The next token gets `index`, as if tokens up to it had been seen and all but the sinks evicted.
  // Tests of very long streams begin with it; `length()` must be at least S.
  void jump(int64_t index);

 private:
  // Where the pool poisons: window tokens [begin, end) are seen no more; what of them has not been
  // overwritten becomes NaN.
  void poison(int64_t begin, int64_t end);
  int64_t pages_per_layer() const { return sink_page_count_ + window_page_count_; }

  PagePool* pool_;
  Window window_;
  int64_t max_length_;
  int64_t sink_page_count_;
  int64_t window_page_count_;
  int64_t length_ = 0;
  std::vector<int32_t> ids_;       // [layers][sink pages, then window pages]
  std::vector<std::byte*> pages_;  // the same, as addresses
};

}  // namespace sinkstream
