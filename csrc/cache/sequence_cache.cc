#include "cache/sequence_cache.h"

#include <algorithm>
#include <cstring>

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

SequenceCache::~SequenceCache() {
  for (const int32_t id : ids_) pool_->release(id);
}

Slot SequenceCache::slot(int64_t layer, int64_t index) const {
  std::byte* const* pages = pages_.data() + layer * pages_per_layer();
  if (window_.is_sink(index)) return {pages[index / kPageRows], index % kPageRows};
  return {pages[sink_page_count_ + window_.block(index) % window_page_count_], window_.row(index)};
}

void SequenceCache::advance(int64_t count) {
  SINKSTREAM_CHECK(count >= 0 && count <= max_length_ - length_, "a sequence of ", length_,
                   " tokens, made for ", max_length_, ", grows by ", count);
  const int64_t first = window_.first(length_);
  length_ += count;
  poison(first, std::min(window_.first(length_), length_));
}

void SequenceCache::poison(int64_t begin, int64_t end) {
  if (!pool_->poisons()) return;
  const PageShape& shape = pool_->shape();
  const int64_t bytes = bytes_of(shape.type);
  const int64_t ring = window_page_count_ * kPageRows;
  const auto spoil = [&](std::byte* head, int64_t element) {
    std::memset(head + element * bytes, 0xff, bytes);
  };
  for (int64_t i = std::max(begin, length_ - ring); i < end; ++i) {
    for (int64_t layer = 0; layer < layers(); ++layer) {
      const Slot at = slot(layer, i);
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          spoil(at.page + shape.key_offset(h), shape.key_element(at.row, d));
          spoil(at.page + shape.value_offset(h), shape.value_element(at.row, d));
        }
        if (!shape.has_scales()) continue;
        for (const int64_t half : {shape.key_offset(h), shape.value_offset(h)}) {  // no code is NaN
          std::memset(at.page + half + shape.scale_offset(at.row), 0xff, sizeof(float));
        }
      }
    }
  }
}

void SequenceCache::restart() {
  length_ = 0;
  window_.begin = 0;
}

void SequenceCache::cut(int64_t index) {
  SINKSTREAM_CHECK(index >= window_.first(length_) && index <= length_, "a sequence of ", length_,
                   " tokens is cut at ", index);
  poison(window_.first(length_), index);
  window_.begin = index;
}

void SequenceCache::evict_for_space(int64_t count) {
  const int64_t recent = window_.window - 1;  // what a query finds beside the sinks and itself
  if (count < 0 || count > recent) {
    throw InvalidArgument(cat("evict_for_space: `n` must be in [0, ", recent,
                              "], what the window has beside the current token, but is ", count,
                              ". Longer texts need no room: they pass through the window."),
                          "n");
  }
  if (window_.rank(length_) + count <= window_.sinks + recent) return;
  cut(length_ - (recent - count));
}

void SequenceCache::copy_from(const SequenceCache& other) {
  SINKSTREAM_CHECK(pages_.size() == other.pages_.size() &&
                       pool_->shape().bytes() == other.pool_->shape().bytes() &&
                       sink_page_count_ == other.sink_page_count_,
                   "a sequence takes over tokens of another geometry");
  for (size_t i = 0; i < pages_.size(); ++i) {
    std::memcpy(pages_[i], other.pages_[i], pool_->shape().bytes());
  }
  window_ = other.window_;
  length_ = other.length_;
}

void SequenceCache::jump(int64_t index) {
  SINKSTREAM_CHECK(length_ >= window_.sinks && index >= length_, "a sequence of ", length_,
                   " tokens jumps to ", index);
  poison(window_.first(length_), length_);
  length_ = index;
  window_.begin = index;
}

void SequenceCache::resume(int64_t length, int64_t begin) {
  length_ = length;
  window_.begin = begin;
  poison(window_.first(length - 1), std::min(window_.first(length), length));  // as `advance` does
}

}  // namespace sinkstream
