#include "cache/sequence_cache.h"

#include <algorithm>

#include "common/check.h"
#include "common/errors.h"

namespace sinkstream {

int64_t SequenceCache::pages_needed(const Window& window, int64_t layers, int64_t max_length) {
  return layers * (window.sink_pages() + window.window_pages(max_length));
}

SequenceCache::SequenceCache(PagePool* pool, const Window& window, int64_t layers,
                             int64_t max_length)
    : pool_(pool),
      window_(window),
      max_length_(max_length),
      sink_page_count_(window.sink_pages()),
      window_page_count_(window.window_pages(max_length)) {
  const int64_t count = layers * pages_per_layer();
  SINKSTREAM_CHECK(pool->free_pages() >= count, "a sequence needs ", count, " pages, but ",
                   pool->free_pages(), " are free");
  ids_.reserve(count);
  pages_.reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    ids_.push_back(pool->acquire());
    pages_.push_back(pool->page(ids_.back()));
  }
}

int64_t SequenceCache::pages_saved(const Window& window, int64_t layers, int64_t count) {
  const int64_t pages = count >= window.sinks ? window.sink_pages() : count / kPageRows;
  return layers * pages;
}

SequenceCache::SequenceCache(const SequenceCache& other, int64_t max_length, int64_t count)
    : pool_(other.pool_),
      window_(other.window_),
      max_length_(max_length),
      sink_page_count_(window_.sink_pages()),
      window_page_count_(window_.window_pages(max_length)),
      length_(count) {
  const bool is_whole = count == other.length_;
  const bool is_there = (is_whole && other.in_flight_ == 0) || count <= other.shareable();
  SINKSTREAM_CHECK(count >= 0 && count <= max_length && is_there, "cannot share ", count,
                   " tokens of a sequence of ", other.length_, ", ", other.evicted(),
                   " of them evicted, with ", other.in_flight_, " more in flight");
  if (!is_whole) window_.begin = 0;
  const int64_t own = pages_per_layer(), layers = other.layers();
  const int64_t needed = layers * own - pages_saved(window_, layers, count);
  SINKSTREAM_CHECK(pool_->free_pages() >= needed, "a sequence needs ", needed, " pages, but ",
                   pool_->free_pages(), " are free");
  // [page ordinal here]: the ordinal of the other's page that holds its tokens, or -1.
  std::vector<int64_t> theirs(own, -1);
  for (int64_t t = 0; t < std::min(count, window_.sinks); t = window_.page_end(t)) {
    theirs[page_ordinal(t)] = other.page_ordinal(t);
  }
  // A fork of all tokens includes the one that only the last query saw: it counts as live.
  const int64_t first = is_whole && count > 0 ? window_.first(count - 1) : window_.first(count);
  for (int64_t t = first; t < count; t = window_.page_end(t)) {
    theirs[page_ordinal(t)] = other.page_ordinal(t);
  }
  const int64_t full_of_sinks = pages_saved(window_, 1, count);
  const int64_t full_of_sinks_there = pages_saved(window_, 1, other.next_index());
  ids_.reserve(layers * own);
  pages_.reserve(layers * own);
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (int64_t i = 0; i < own; ++i) {
      if (theirs[i] < 0) {
        ids_.push_back(pool_->acquire());
        continue;
      }
      const int32_t id = other.ids_[layer * other.pages_per_layer() + theirs[i]];
      if (i < full_of_sinks) {
        pool_->share(id);
        ids_.push_back(id);
      } else if (i < full_of_sinks_there) {  // only this sequence would write to it
        ids_.push_back(pool_->copy(id));
      } else {
        pool_->share_for_writing(id);
        ids_.push_back(id);
      }
    }
  }
  for (const int32_t id : ids_) pages_.push_back(pool_->page(id));
}

SequenceCache::~SequenceCache() {
  for (const int32_t id : ids_) pool_->release(id);
}

Slot SequenceCache::slot(int64_t layer, int64_t index) const {
  std::byte* page = pages_[layer * pages_per_layer() + page_ordinal(index)];
  return {page, window_.is_sink(index) ? index % kPageRows : window_.row(index)};
}

void SequenceCache::make_writable(int64_t count) {
  for (int64_t t = next_index(); t < next_index() + count; t = window_.page_end(t)) {
    for (int64_t i = page_ordinal(t); i < static_cast<int64_t>(ids_.size());
         i += pages_per_layer()) {
      if (pool_->holders(ids_[i]) == 1) continue;
      ids_[i] = pool_->own(ids_[i]);
      pages_[i] = pool_->page(ids_[i]);
    }
  }
}

void SequenceCache::advance(int64_t count) {
  SINKSTREAM_CHECK(count >= 0 && count <= max_length_ - length_, "cannot add ", count,
                   " tokens to a sequence of ", length_, " with a maximum of ", max_length_);
  const int64_t first = window_.first(length_);
  length_ += count;
  poison(first, std::min(window_.first(length_), length_));
}

void SequenceCache::add_in_flight(int64_t count) {
  SINKSTREAM_CHECK(count >= 0 && count <= max_length_ - next_index(), "cannot launch ", count,
                   " tokens of a sequence of ", next_index(), " with a maximum of ", max_length_);
  in_flight_ += count;
}

void SequenceCache::commit_in_flight(int64_t count) {
  SINKSTREAM_CHECK(count <= in_flight_, count, " tokens are delivered, but only ", in_flight_,
                   " are in flight");
  in_flight_ -= count;
  advance(count);
}

void SequenceCache::poison(int64_t begin, int64_t end) {
  if (!pool_->poisons()) return;
  const PageShape& shape = pool_->shape();
  const int64_t bytes = bytes_of(shape.type);
  const int64_t ring = window_page_count_ * kPageRows;
  const auto poison_number = [&](std::byte* head, int64_t element) {
    pool_->memory().poison(head + element * bytes, bytes);
  };
  for (int64_t i = std::max(begin, next_index() - ring); i < end; ++i) {
    for (int64_t layer = 0; layer < layers(); ++layer) {
      const int64_t page = layer * pages_per_layer() + page_ordinal(i);
      if (pool_->holders(ids_[page]) > 1) continue;  // another holder may still see it
      const Slot at = slot(layer, i);
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          poison_number(at.page + shape.key_offset(h), shape.key_element(at.row, d));
          poison_number(at.page + shape.value_offset(h), shape.value_element(at.row, d));
        }
        if (!shape.has_scales()) continue;
        for (const int64_t half :
             {shape.key_offset(h), shape.value_offset(h)}) {  // int8 has no NaN
          pool_->memory().poison(at.page + half + shape.scale_offset(at.row), sizeof(float));
        }
      }
    }
  }
}

bool SequenceCache::rewind(int64_t length) {
  SINKSTREAM_CHECK(length >= 0 && can_rewind(length) && in_flight_ == 0,
                   "cannot rewind a sequence of ", length_, " tokens, with ", in_flight_,
                   " more in flight, to ", length);
  // Pages that were full of sinks and will no longer be.
  const int64_t begin = pages_saved(window_, 1, length), end = pages_saved(window_, 1, length_);
  std::vector<size_t> shared;
  for (int64_t layer = 0; layer < layers(); ++layer) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t page = layer * pages_per_layer() + i;
      const bool needs_page = pool_->holders(ids_[page]) > 1 && !pool_->has_spare(ids_[page]);
      if (needs_page) shared.push_back(static_cast<size_t>(page));
    }
  }
  if (static_cast<int64_t>(shared.size()) > pool_->free_pages()) return false;
  for (const size_t page : shared) {
    ids_[page] = pool_->own(ids_[page]);
    pages_[page] = pool_->page(ids_[page]);
  }
  length_ = length;
  return true;
}

void SequenceCache::restart() {
  length_ = 0;
  window_.begin = 0;
}

void SequenceCache::cut(int64_t index) {
  SINKSTREAM_CHECK(index >= window_.first(length_) && index <= length_, "cannot cut a sequence of ",
                   length_, " tokens at ", index);
  poison(window_.first(length_), index);
  window_.begin = index;
}

void SequenceCache::evict_for_space(int64_t count) {
  const int64_t recent = window_.window - 1;  // what a query sees, excluding sinks and itself
  if (count < 0 || count > recent) {
    throw InvalidArgument(cat("evict_for_space: `n` must be in [0, ", recent,
                              "] (the window without the current token), but is ", count,
                              ". Longer texts need no call: they stream through the window."),
                          "n");
  }
  if (window_.rank(length_) + count <= window_.sinks + recent) return;
  cut(length_ - (recent - count));
}

void SequenceCache::copy_from(const SequenceCache& other) {
  SINKSTREAM_CHECK(pages_.size() == other.pages_.size() &&
                       pool_->shape().bytes() == other.pool_->shape().bytes() &&
                       sink_page_count_ == other.sink_page_count_,
                   "cannot copy tokens from a sequence of another geometry");
  for (size_t i = 0; i < pages_.size(); ++i) {
    pool_->memory().copy(pages_[i], other.pages_[i], pool_->shape().bytes());
  }
  window_ = other.window_;
  length_ = other.length_;
}

void SequenceCache::jump(int64_t index) {
  SINKSTREAM_CHECK(length_ >= window_.sinks && index >= length_, "cannot jump from ", length_,
                   " tokens to ", index);
  poison(window_.first(length_), length_);
  length_ = index;
  window_.begin = index;
}

void SequenceCache::resume(int64_t length, int64_t begin) {
  length_ = length;
  window_.begin = begin;
  poison(window_.first(length - 1), std::min(window_.first(length), length));  // as in `advance`
}

}  // namespace sinkstream
