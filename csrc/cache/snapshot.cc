#include "cache/snapshot.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/check.h"

namespace sinkstream {

namespace {

// Live tokens [begin, end), in consecutive rows of one page in every layer.
struct Run {
  int64_t begin, end;
  int64_t rank;  // of the first one among the live tokens
};

// Calls `visit` for each run, in the order of the tokens' indices.
template <typename Visit>
void for_each_run(const Window& window, int64_t length, const Visit& visit) {
  const auto visit_all = [&](int64_t begin, int64_t end, int64_t rank) {
    for (int64_t i = begin; i < end; i = window.page_end(i)) {
      visit({.begin = i, .end = std::min(window.page_end(i), end), .rank = rank + i - begin});
    }
  };
  visit_all(0, std::min(window.sinks, length), 0);
  visit_all(window.first(length - 1), length, window.sinks);
}

// Gives the host access to one page at a time: in place or, for memory it cannot access, in a copy
// that is written back.
class PageView {
 public:
  PageView(PageMemory* memory, int64_t page_bytes) : memory_(memory) {
    if (!memory->is_host_memory()) copy_.resize(page_bytes);
  }

  std::byte* open(std::byte* page) {
    if (copy_.empty()) return page;
    memory_->read(copy_.data(), page, std::ssize(copy_));
    return copy_.data();
  }
  void write_back(std::byte* page) {
    if (!copy_.empty()) memory_->write(page, copy_.data(), std::ssize(copy_));
  }

 private:
  PageMemory* memory_;
  std::vector<std::byte> copy_;
};

// Copies from the page to the plain layout or, if the plain layout is const, to the page.
template <int64_t kBytes, typename Byte>
void move(Byte* plain, std::byte* paged) {
  if constexpr (std::is_const_v<Byte>) {
    std::memcpy(paged, plain, kBytes);
  } else {
    std::memcpy(plain, paged, kBytes);
  }
}

// A group's window once its sequence is in this state.
Window window_in(const SequenceCache& cache, int64_t group, const SequenceState& state) {
  Window window = cache.group(group).window;
  window.begin = state.begins[static_cast<size_t>(group)];
  return window;
}

// The layers of a group, ascending.
std::vector<int64_t> layers_of(const SequenceCache& cache, int64_t group) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < cache.layers(); ++layer) {
    const bool is_in_group =
        cache.has_pages(layer) && &cache.group_of(layer) == &cache.group(group);
    if (is_in_group) layers.push_back(layer);
  }
  return layers;
}

// Copies all numbers of the live tokens of a group's `layers`, in a sequence that has, or will
// have, this `length` and `window`, including a cut. `kBytes` is the size of a number.
template <int64_t kBytes, typename Byte>
void move_numbers(const SequenceCache& cache, const std::vector<int64_t>& layers,
                  const Window& window, int64_t length, Byte* keys_values, Byte* scales) {
  const PagePool& pool = *cache.group_of(layers.front()).pool;
  const PageShape& shape = pool.shape();
  const int64_t live = window.live(length);
  PageView view(&pool.memory(), shape.bytes());
  const auto move_head = [&](const Run& run, int64_t first_row, int64_t row, std::byte* paged,
                             const auto& element) {
    for (int64_t i = 0; i < run.end - run.begin; ++i) {
      const int64_t plain_row = row + run.rank + i;
      Byte* plain = keys_values + plain_row * shape.head_dim * kBytes;
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        move<kBytes>(plain + d * kBytes, paged + element(first_row + i, d) * kBytes);
      }
      if (shape.has_scales()) {
        move<sizeof(float)>(scales + plain_row * int64_t{sizeof(float)},
                            paged + shape.scale_offset(first_row + i));
      }
    }
  };
  for_each_run(window, length, [&](const Run& run) {
    for (int64_t i = 0; i < std::ssize(layers); ++i) {
      const Slot at = cache.slot(layers[static_cast<size_t>(i)], run.begin);
      std::byte* const page = view.open(at.page);
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const int64_t keys = (i * 2 * shape.kv_heads + head) * live;
        const int64_t values = keys + shape.kv_heads * live;
        move_head(run, at.row, keys, page + shape.key_offset(head),
                  [&](int64_t row, int64_t d) { return shape.key_element(row, d); });
        move_head(run, at.row, values, page + shape.value_offset(head),
                  [&](int64_t row, int64_t d) { return shape.value_element(row, d); });
      }
      if constexpr (std::is_const_v<Byte>) view.write_back(at.page);
    }
  });
}

template <typename Byte>
void move_group(const SequenceCache& cache, int64_t group, const SequenceState& state,
                Byte* keys_values, Byte* scales) {
  const std::vector<int64_t> layers = layers_of(cache, group);
  const Window window = window_in(cache, group, state);
  const DType type = cache.group(group).shape().type;
  switch (bytes_of(type)) {
    case 1: return move_numbers<1>(cache, layers, window, state.length, keys_values, scales);
    case 2: return move_numbers<2>(cache, layers, window, state.length, keys_values, scales);
    case 4: return move_numbers<4>(cache, layers, window, state.length, keys_values, scales);
  }
  SINKSTREAM_CHECK(false, "the size of type ", name_of(type), " is unknown");
}

template <typename Byte>
void move_tokens(const SequenceCache& cache, const SequenceState& state, Byte* keys_values,
                 Byte* scales) {
  const SnapshotShape all = snapshot_shape(cache, state);
  for (int64_t group = 0; group < cache.group_count(); ++group) {
    move_group(cache, group, state, keys_values, scales);
    const SnapshotShape::Group& moved = all.groups[static_cast<size_t>(group)];
    keys_values += all.bytes(moved);
    if (scales != nullptr) scales += all.scale_bytes(moved);
  }
}

}  // namespace

SequenceState state_of(const SequenceCache& cache) {
  SequenceState state{.length = cache.length(), .begins = {}};
  for (int64_t group = 0; group < cache.group_count(); ++group) {
    const Window& window = cache.group(group).window;
    // A cut among the sinks evicts nothing, nor does one that the window has moved past.
    const int64_t evicted = std::max(window.sinks, cache.length() - window.window);
    state.begins.push_back(window.begin <= evicted ? 0 : window.begin);
  }
  return state;
}

SnapshotShape snapshot_shape(const SequenceCache& cache, const SequenceState& state) {
  SnapshotShape found{.groups = {}, .type = cache.group(0).shape().type, .states = {}};
  for (const StateExtent& extent : cache.state_extents()) found.states.push_back(extent.bytes);
  for (int64_t group = 0; group < cache.group_count(); ++group) {
    const PageShape& shape = cache.group(group).shape();
    found.groups.push_back({.layers = cache.group(group).layers,
                            .kv_heads = shape.kv_heads,
                            .head_dim = shape.head_dim,
                            .live = window_in(cache, group, state).live(state.length)});
  }
  return found;
}

SnapshotShape snapshot_shape(const SequenceCache& cache) {
  return snapshot_shape(cache, state_of(cache));
}

void snapshot(const SequenceCache& cache, std::byte* keys_values, float* scales,
              std::byte* states) {
  move_tokens(cache, state_of(cache), keys_values, reinterpret_cast<std::byte*>(scales));
  for (const StateExtent& extent : cache.state_extents()) {
    const std::byte* const head = cache.states()->lane_of(cache.length());
    cache.states()->pool().memory().read(states, head + extent.offset, extent.bytes);
    states += extent.bytes;
  }
}

void restore(SequenceCache* cache, const SequenceState& state, const std::byte* keys_values,
             const float* scales, const std::byte* states) {
  SINKSTREAM_CHECK(cache->length() == 0, "cannot restore a snapshot into a sequence of ",
                   cache->length(), " tokens");
  SINKSTREAM_CHECK(state.length >= 0 && state.length <= cache->max_length(), "cannot restore ",
                   state.length, " tokens into a sequence with a maximum of ", cache->max_length());
  SINKSTREAM_CHECK(std::ssize(state.begins) == cache->group_count(),
                   "cannot restore a sequence with ", state.begins.size(),
                   " groups of layers into one with ", cache->group_count());
  for (const int64_t begin : state.begins) {
    SINKSTREAM_CHECK(begin >= 0 && begin <= state.length, "cannot restore a sequence of ",
                     state.length, " tokens with a cut at ", begin);
  }
  move_tokens(*cache, state, keys_values, reinterpret_cast<const std::byte*>(scales));
  for (const StateExtent& extent : cache->state_extents()) {
    std::byte* const head = cache->states()->lane_of(0);
    cache->states()->pool().memory().write(head + extent.offset, states, extent.bytes);
    states += extent.bytes;
  }
  cache->resume(state.length, state.begins);
}

}  // namespace sinkstream
