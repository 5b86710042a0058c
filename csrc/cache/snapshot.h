// Copies a sequence's live keys and values and its states to a plain layout without pages, and
// back, bit for bit. Knows nothing about files; PageShape knows where a token is in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cache/sequence_cache.h"

namespace sinkstream {

// The sizes of a snapshot. `keys_values` is, for each group of layers in order, [layers][2 (keys,
// values)][kv_heads][live][head_dim] of `type`, and `scales`, for int8 only, is likewise
// [layers][2][kv_heads][live] of float32. The live tokens of a group are its sinks, then its
// window, in index order. `states` is the state of each layer that has one, in order, after the
// sequence's last token.
struct SnapshotShape {
  struct Group {
    int64_t layers = 0;
    int64_t kv_heads = 0;
    int64_t head_dim = 0;
    int64_t live = 0;

    int64_t rows() const { return layers * 2 * kv_heads * live; }
  };
  std::vector<Group> groups;
  DType type = DType::kFloat32;
  std::vector<int64_t> states;  // the size of each, in bytes

  // Of one group.
  int64_t bytes(const Group& group) const { return group.rows() * group.head_dim * bytes_of(type); }
  int64_t scale_bytes(const Group& group) const {
    return type == DType::kInt8 ? group.rows() * int64_t{sizeof(float)} : 0;
  }
  // Of all of them.
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const Group& group : groups) bytes += this->bytes(group);
    return bytes;
  }
  int64_t scale_bytes() const {
    int64_t bytes = 0;
    for (const Group& group : groups) bytes += scale_bytes(group);
    return bytes;
  }
  int64_t state_bytes() const { return std::accumulate(states.begin(), states.end(), int64_t{0}); }
};

SnapshotShape snapshot_shape(const SequenceCache& cache);

// Copies the live tokens and the states out, to buffers of snapshot_shape(cache). `scales` and
// `states` are null if there are none. No token is in flight.
void snapshot(const SequenceCache& cache, std::byte* keys_values, float* scales,
              std::byte* states = nullptr);

// What else a snapshot must record about its sequence.
struct SequenceState {
  int64_t length = 0;           // SequenceCache::length
  std::vector<int64_t> begins;  // of each group of layers: Window::begin, in [0, length]
};

SequenceState state_of(const SequenceCache& cache);
// The shape of a snapshot of a sequence in this state, in a cache with the groups of `cache`.
SnapshotShape snapshot_shape(const SequenceCache& cache, const SequenceState& state);

// Restores them into an empty cache with the same S, W, groups, page shapes and sizes of states:
// what is appended afterwards has the same bits as when appended to the original. `max_length` may
// differ.
void restore(SequenceCache* cache, const SequenceState& state, const std::byte* keys_values,
             const float* scales, const std::byte* states = nullptr);

}  // namespace sinkstream
