#include "cache/sequence_cache.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/errors.h"

namespace sinkstream {

namespace {

// Pages of a layer that are full of sinks once there are `count` tokens.
int64_t full_sink_pages(const Window& window, int64_t count) {
  return count >= window.sinks ? window.sink_pages() : count / kPageRows;
}

// [page ordinal in `own`]: the ordinal in `other` of the page that holds the first `count` tokens
// from `first` on and the sinks, or −1.
std::vector<int64_t> pages_to_share(const GroupPages& own, const GroupPages& other, int64_t first,
                                    int64_t count) {
  std::vector<int64_t> theirs(static_cast<size_t>(own.pages_per_layer()), -1);
  const auto add = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t = own.window.page_end(t)) {
      theirs[static_cast<size_t>(own.page_ordinal(t))] = other.page_ordinal(t);
    }
  };
  add(0, std::min(count, own.window.sinks));
  add(first, count);
  return theirs;
}

}  // namespace

MemoryAmount SequenceCache::memory_needed(const Window& window, const CacheLayers& layers,
                                          int64_t max_length) {
  MemoryAmount needed{.states = layers.has_states() ? 1 : 0};
  for (const CacheGroup& group : layers.groups()) {
    const Window kept = group.window_of(window);
    needed.pages[group.shape] +=
        group.count() * (kept.sink_pages() + kept.window_pages_for(max_length));
  }
  return needed;
}

MemoryAmount SequenceCache::memory_saved(const Window& window, const CacheLayers& layers,
                                         int64_t count) {
  MemoryAmount saved;
  for (const CacheGroup& group : layers.groups()) {
    saved.pages[group.shape] += group.count() * full_sink_pages(group.window_of(window), count);
  }
  return saved;
}

SequenceCache::SequenceCache(const MemoryPools& pools, const Window& window,
                             const CacheLayers& layers, int64_t max_length)
    : pools_(pools), max_length_(max_length), main_(layers.main_group(window)) {
  for (const CacheGroup& group : layers.groups()) {
    PagePool* const pool = pools.pages[group.shape];
    SINKSTREAM_CHECK(pool != nullptr, "there is no pool for pages of shape ", group.shape);
    groups_.push_back({.window = group.window_of(window),
                       .pool = pool,
                       .pool_number = group.shape,
                       .layers = group.count()});
  }
  count_pages();
  for (int64_t layer = 0; layer < layers.count(); ++layer)
    layers_.push_back(layers.layer_in_group(layer));
  const MemoryAmount needed = memory_needed(window, layers, max_length);
  SINKSTREAM_CHECK(needed.fits_in(pools.free()), "a sequence needs ", describe(needed), ", but ",
                   describe(pools.free()), " are free");
  reserve();
  if (layers.has_states()) {
    SINKSTREAM_CHECK(pools.states->lane_bytes() == layers.lane_bytes(), "states have ",
                     layers.lane_bytes(), " bytes, but lanes ", pools.states->lane_bytes());
    state_extents_ = layers.states();
    states_.emplace(pools.states);
  }
  // Nothing may fail once there are pages.
  for (const GroupPages& group : groups_) {
    for (int64_t i = 0; i < group.pages(); ++i) add_page(group, group.pool->acquire());
  }
}

SequenceCache::SequenceCache(const SequenceCache& other, int64_t max_length, int64_t count)
    : pools_(other.pools_),
      max_length_(max_length),
      main_(other.main_),
      length_(count),
      groups_(other.groups_),
      layers_(other.layers_),
      state_extents_(other.state_extents_) {
  const bool is_whole = count == other.length_;
  const bool is_there = ((is_whole && other.in_flight_ == 0) || count <= other.shareable()) &&
                        (!other.states_ || count == 0 || other.states_->stands_for(count));
  SINKSTREAM_CHECK(count >= 0 && count <= max_length && is_there, "cannot share ", count,
                   " tokens of a sequence of ", other.length_, ", ", other.evicted(),
                   " of them evicted, with ", other.in_flight_, " more in flight");
  count_pages();
  MemoryAmount needed = held();
  needed.states = other.states_ ? 1 : 0;
  for (GroupPages& group : groups_) {
    if (!is_whole) group.window.begin = 0;
    needed.pages[group.pool_number] -= group.layers * full_sink_pages(group.window, count);
  }
  SINKSTREAM_CHECK(needed.fits_in(pools_.free()), "a sequence needs ", describe(needed), ", but ",
                   describe(pools_.free()), " are free");
  std::vector<std::vector<int64_t>> theirs;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Window& window = groups_[g].window;
    // A fork of all tokens includes the one that only the last query saw: it counts as live.
    const int64_t first = is_whole && count > 0 ? window.first(count - 1) : window.first(count);
    theirs.push_back(pages_to_share(groups_[g], other.groups_[g], first, count));
  }
  reserve();
  if (other.states_ && count > 0) states_.emplace(*other.states_, count);
  if (other.states_ && count == 0) states_.emplace(&other.states_->pool());
  // Nothing may fail once there are pages.
  for (size_t g = 0; g < groups_.size(); ++g) {
    share_pages(groups_[g], other, other.groups_[g], theirs[g]);
  }
}

// Adds the pages of one group; `theirs` as from pages_to_share.
void SequenceCache::share_pages(const GroupPages& group, const SequenceCache& other,
                                const GroupPages& others, const std::vector<int64_t>& theirs) {
  const int64_t full_of_sinks = full_sink_pages(group.window, length_);
  const int64_t full_of_sinks_there = full_sink_pages(group.window, other.next_index());
  const std::span<const int32_t> ids = other.page_ids(others);
  for (int64_t layer = 0; layer < group.layers; ++layer) {
    for (int64_t i = 0; i < group.pages_per_layer(); ++i) {
      const int64_t there = theirs[static_cast<size_t>(i)];
      if (there < 0) {
        add_page(group, group.pool->acquire());
        continue;
      }
      const int32_t id = ids[static_cast<size_t>(layer * others.pages_per_layer() + there)];
      if (i < full_of_sinks) {
        group.pool->share(id);
        add_page(group, id);
      } else if (i < full_of_sinks_there) {  // only this sequence would write to it
        add_page(group, group.pool->copy(id));
      } else {
        group.pool->share_for_writing(id);
        add_page(group, id);
      }
    }
  }
}

SequenceCache::~SequenceCache() {
  for (const GroupPages& group : groups_) {
    for (const int32_t id : page_ids(group)) group.pool->release(id);
  }
}

MemoryAmount SequenceCache::held() const {
  MemoryAmount held{.states = states_ ? 1 : 0};
  for (const GroupPages& group : groups_) held.pages[group.pool_number] += group.pages();
  return held;
}

void SequenceCache::count_pages() {
  int64_t pages = 0;
  for (GroupPages& group : groups_) {
    group.sink_page_count = group.window.sink_pages();
    group.window_page_count = group.window.window_pages_for(max_length_);
    group.offset = pages;
    pages += group.pages();
  }
}

void SequenceCache::reserve() {
  const auto count = static_cast<size_t>(held().all_pages());
  ids_.reserve(count);
  pages_.reserve(count);
}

void SequenceCache::add_page(const GroupPages& group, int32_t id) {
  ids_.push_back(id);
  pages_.push_back(group.pool->page(id));
}

Slot SequenceCache::slot(int64_t layer, int64_t index) const {
  const GroupPages& group = group_of(layer);
  std::byte* page = pages_[static_cast<size_t>(first_page(layer) + group.page_ordinal(index))];
  return {page, group.row(index)};
}

SequenceCache::StateLanes SequenceCache::state(int64_t layer, int64_t index) const {
  const auto [group, number] = layers_[static_cast<size_t>(layer)];
  SINKSTREAM_CHECK(group == CacheLayers::kNoGroup, "layer ", layer, " has no state");
  const int64_t offset = state_extents_[static_cast<size_t>(number)].offset;
  return {states_->lane_of(index) + offset, states_->free_lane() + offset};
}

int64_t SequenceCache::shareable() const {
  int64_t least_sinks = length_;
  bool has_evicted = false;
  for (const GroupPages& group : groups_) {
    least_sinks = std::min(least_sinks, group.window.sinks);
    has_evicted |= group.window.first(next_index()) != group.window.sinks;
  }
  return has_evicted ? least_sinks : length_;
}

void SequenceCache::make_writable(int64_t count) {
  for (const GroupPages& group : groups_) {
    for (int64_t t = next_index(); t < next_index() + count; t = group.window.page_end(t)) {
      for (int64_t layer = 0; layer < group.layers; ++layer) {
        own_page(group, group.page(layer, group.page_ordinal(t)));
      }
    }
  }
}

// Makes this sequence the only holder of one of its pages.
void SequenceCache::own_page(const GroupPages& group, int64_t page) {
  const auto at = static_cast<size_t>(page);
  if (group.pool->holders(ids_[at]) == 1) return;
  ids_[at] = group.pool->own(ids_[at]);
  pages_[at] = group.pool->page(ids_[at]);
}

void SequenceCache::add_in_flight(int64_t count) {
  SINKSTREAM_CHECK(count >= 0 && count <= max_length_ - next_index(), "cannot launch ", count,
                   " tokens of a sequence of ", next_index(), " with a maximum of ", max_length_);
  in_flight_ += count;
  if (states_ && count > 0) states_->add(next_index());
}

void SequenceCache::commit_in_flight(int64_t count) {
  SINKSTREAM_CHECK(count >= 0 && count <= in_flight_, count, " tokens are kept, but only ",
                   in_flight_, " are in flight");
  const int64_t before = length_;
  in_flight_ -= count;
  length_ += count;
  if (states_) states_->commit(length_);
  for (const GroupPages& group : groups_) {
    poison(group, group.window.first(before), std::min(group.window.first(length_), length_));
  }
}

void SequenceCache::drop_in_flight() {
  for (const GroupPages& group : groups_) {
    poison(group, std::max(length_, group.window.sinks), next_index());
  }
  in_flight_ = 0;
  if (states_) states_->rewind(length_);
}

void SequenceCache::poison(const GroupPages& group, int64_t begin, int64_t end) {
  if (!group.pool->poisons()) return;
  const PageShape& shape = group.shape();
  const int64_t bytes = bytes_of(shape.type);
  const int64_t ring = group.window_page_count * kPageRows;
  const auto poison_number = [&](std::byte* head, int64_t element) {
    group.pool->memory().poison(head + element * bytes, bytes);
  };
  for (int64_t i = std::max(begin, next_index() - ring); i < end; ++i) {
    for (int64_t layer = 0; layer < group.layers; ++layer) {
      const auto page = static_cast<size_t>(group.page(layer, group.page_ordinal(i)));
      if (group.pool->holders(ids_[page]) > 1) continue;  // another holder may still see it
      const Slot at = {pages_[page], group.row(i)};
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          poison_number(at.page + shape.key_offset(h), shape.key_element(at.row, d));
          poison_number(at.page + shape.value_offset(h), shape.value_element(at.row, d));
        }
        if (!shape.has_scales()) continue;
        for (const int64_t half :
             {shape.key_offset(h), shape.value_offset(h)}) {  // int8 has no NaN
          group.pool->memory().poison(at.page + half + shape.scale_offset(at.row), sizeof(float));
        }
      }
    }
  }
}

void SequenceCache::keep_states() {
  SINKSTREAM_CHECK(in_flight_ == 0, in_flight_, " tokens are in flight");
  if (states_) states_->keep(length_);
}

bool SequenceCache::can_rewind(int64_t length) const {
  return length <= length_ && (!states_ || states_->stands_for(length)) &&
         std::all_of(groups_.begin(), groups_.end(), [&](const GroupPages& group) {
           return group.window.first(length) == group.window.first(length_);
         });
}

// Makes pages writable that are full of sinks and are not once there are `length` tokens. Returns
// false, and does nothing, if no page is free for a copy.
bool SequenceCache::own_sinks_from(int64_t length) {
  std::vector<std::pair<const GroupPages*, int64_t>> shared;
  MemoryAmount copies;
  for (const GroupPages& group : groups_) {
    const int64_t begin = full_sink_pages(group.window, length);
    const int64_t end = full_sink_pages(group.window, length_);
    for (int64_t layer = 0; layer < group.layers; ++layer) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t page = group.page(layer, i);
        const int32_t id = ids_[static_cast<size_t>(page)];
        if (group.pool->holders(id) == 1 || group.pool->has_spare(id)) continue;
        shared.emplace_back(&group, page);
        ++copies.pages[group.pool_number];
      }
    }
  }
  if (!copies.fits_in(pools_.free())) return false;
  for (const auto& [group, page] : shared) own_page(*group, page);
  return true;
}

bool SequenceCache::rewind(int64_t length) {
  SINKSTREAM_CHECK(length >= 0 && can_rewind(length) && in_flight_ == 0,
                   "cannot rewind a sequence of ", length_, " tokens, with ", in_flight_,
                   " more in flight, to ", length);
  if (!own_sinks_from(length)) return false;
  length_ = length;
  if (states_) states_->rewind(length);
  return true;
}

bool SequenceCache::restart_at(int64_t index) {
  SINKSTREAM_CHECK(
      in_flight_ == 0 && index >= 0 && index <= length_ && (index == 0 || index >= window().sinks),
      "cannot restart a sequence of ", length_, " tokens, with ", in_flight_,
      " more in flight, at ", index);
  if (!own_sinks_from(index)) return false;
  for (GroupPages& group : groups_) {
    poison(group, group.window.first(length_ - 1), length_);
    group.window.begin = index;
  }
  length_ = index;
  if (states_) {
    states_->restart();
    states_->relabel(0, index);
  }
  return true;
}

void SequenceCache::restart() {
  length_ = 0;
  if (states_) states_->restart();
  for (GroupPages& group : groups_) group.window.begin = 0;
}

void SequenceCache::cut(int64_t index) {
  SINKSTREAM_CHECK(index >= window().first(length_) && index <= length_,
                   "cannot cut a sequence of ", length_, " tokens at ", index);
  for (int64_t g = 0; g < group_count(); ++g) {
    cut_group(g, std::max(index, group(g).window.first(length_)));
  }
}

void SequenceCache::cut_group(int64_t group, int64_t index) {
  GroupPages& pages = groups_[static_cast<size_t>(group)];
  const int64_t first = pages.window.first(length_);
  SINKSTREAM_CHECK(index >= first && index <= std::max(first, length_), "cannot cut a sequence of ",
                   length_, " tokens at ", index);
  poison(pages, first, index);
  pages.window.begin = index;
}

void SequenceCache::evict_for_space(int64_t count) {
  const int64_t recent = window().window - 1;  // what a query sees, excluding sinks and itself
  if (count < 0 || count > recent) {
    throw InvalidArgument(cat("evict_for_space: `n` must be in [0, ", recent,
                              "] (the window without the current token), but is ", count,
                              ". Longer texts need no call: they stream through the window."),
                          "n");
  }
  if (window().rank(length_) + count <= window().sinks + recent) return;
  cut(length_ - (recent - count));
}

void SequenceCache::copy_from(const SequenceCache& other) {
  SINKSTREAM_CHECK(pages_.size() == other.pages_.size() && groups_.size() == other.groups_.size() &&
                       state_extents_ == other.state_extents_,
                   "cannot copy tokens from a sequence with a different geometry");
  for (size_t g = 0; g < groups_.size(); ++g) {
    GroupPages& group = groups_[g];
    SINKSTREAM_CHECK(group.sink_page_count == other.groups_[g].sink_page_count &&
                         group.offset == other.groups_[g].offset &&
                         group.shape().bytes() == other.groups_[g].shape().bytes(),
                     "cannot copy tokens from a sequence with a different geometry");
    group.window = other.groups_[g].window;
    for (int64_t i = group.offset; i < group.offset + group.pages(); ++i) {
      const auto at = static_cast<size_t>(i);
      group.pool->memory().copy(pages_[at], other.pages_[at], group.shape().bytes());
    }
  }
  length_ = other.length_;
  if (states_) states_->copy_from(*other.states_, length_);
}

void SequenceCache::jump(int64_t index) {
  SINKSTREAM_CHECK(length_ >= window().sinks && index >= length_, "cannot jump from ", length_,
                   " tokens to ", index);
  const int64_t before = length_;
  for (const GroupPages& group : groups_) poison(group, group.window.first(before), before);
  length_ = index;
  if (states_) states_->relabel(before, index);
  for (GroupPages& group : groups_) group.window.begin = index;
}

void SequenceCache::resume(int64_t length, std::span<const int64_t> begins) {
  SINKSTREAM_CHECK(std::ssize(begins) == group_count(), "a sequence has ", group_count(),
                   " groups of layers, not ", begins.size());
  length_ = length;
  if (states_) states_->relabel(0, length);
  for (size_t g = 0; g < groups_.size(); ++g) {
    Window& window = groups_[g].window;
    window.begin = begins[g];
    // As in `commit_in_flight`.
    poison(groups_[g], window.first(length - 1), std::min(window.first(length), length));
  }
}

}  // namespace sinkstream
