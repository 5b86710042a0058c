#pragma once

#include "kernels/cpu/cache_type.inl"
#include "kernels/cpu/rotate.inl"

// Moves one head of one row.
template <typename T>
SINKSTREAM_INLINE void evict_head(const EvictArgs& args, int64_t r, int64_t head) {
  const PageShape shape = {
      .kv_heads = args.shape.kv_heads, .head_dim = args.shape.head_dim, .type = kTypeOf<T>};
  const int64_t head_dim = shape.head_dim;
  const Slot from = args.from[r];
  const Slot to = args.to[r];
  alignas(64) T narrow[kMostHeadDim + kLanes] = {};
  alignas(64) float stored[kMostHeadDim + kLanes];
  alignas(64) float rotated[kMostHeadDim + kLanes] = {};

  const T* from_keys = reinterpret_cast<const T*>(from.page + shape.key_offset(head));
  for (int64_t d = 0; d < head_dim; ++d) {
    narrow[d] = from_keys[shape.key_element(from.row, d)];
  }
  if constexpr (kScaled<T>) {
    widen_head(narrow, scales_of(from_keys, head_dim)[from.row], head_dim, stored);
  } else {
    widen_head(narrow, head_dim, stored);
  }
  rotate(args.rotation, 0, stored, head_dim, rotated);
  write_row(reinterpret_cast<T*>(to.page + shape.key_offset(head)), to.row, rotated, head_dim,
            [&](int64_t d) { return shape.key_element(to.row, d); });

  const T* from_values = reinterpret_cast<const T*>(from.page + shape.value_offset(head));
  T* values = reinterpret_cast<T*>(to.page + shape.value_offset(head));
  for (int64_t d = 0; d < head_dim; ++d) {
    values[shape.value_element(to.row, d)] = from_values[shape.value_element(from.row, d)];
  }
  if constexpr (kScaled<T>) {
    scales_of(values, head_dim)[to.row] = scales_of(from_values, head_dim)[from.row];
  }
}

// A task moves all rows of one head, in their order.
void evict(const EvictArgs& args, const Launch& launch) {
  with_cache_type(args.shape.type, [&]<typename T>(T*) {
    launch.pool->run(args.shape.kv_heads, [&](int64_t head, int) {
      for (int64_t r = 0; r < args.rows; ++r) evict_head<T>(args, r, head);
    });
  });
}
