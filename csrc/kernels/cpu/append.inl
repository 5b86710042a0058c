#pragma once

#include "kernels/cpu/cache_type.inl"
#include "kernels/cpu/rotate.inl"

// Writes one head of one row.
template <typename T>
SINKSTREAM_INLINE void append_head(const AppendArgs& args, int64_t r, int64_t head) {
  const PageShape shape = {
      .kv_heads = args.shape.kv_heads, .head_dim = args.shape.head_dim, .type = kTypeOf<T>};
  const int64_t head_dim = shape.head_dim;
  const Slot slot = args.slots[r];
  alignas(64) float exact[kMostHeadDim + kLanes] = {};

  rotate(args.rotation, r, args.keys + r * args.key_stride + head * head_dim, head_dim, exact);
  write_row(reinterpret_cast<T*>(slot.page + shape.key_offset(head)), slot.row, exact, head_dim,
            [&](int64_t d) { return shape.key_element(slot.row, d); });

  __builtin_memcpy(exact, args.values + r * args.value_stride + head * head_dim,
                   head_dim * sizeof(float));
  write_row(reinterpret_cast<T*>(slot.page + shape.value_offset(head)), slot.row, exact, head_dim,
            [&](int64_t d) { return shape.value_element(slot.row, d); });
}

void append(const AppendArgs& args, const Launch& launch) {
  // Adjacent rows share cache lines of keys, so a task takes several rows of one head.
  constexpr int64_t kRows = 16;
  const int64_t chunks = divide_up(args.rows, kRows);
  with_cache_type(args.shape.type, [&]<typename T>(T*) {
    launch.pool->run(chunks * args.shape.kv_heads, [&](int64_t task, int) {
      const int64_t begin = task / args.shape.kv_heads * kRows;
      const int64_t end = begin + kRows < args.rows ? begin + kRows : args.rows;
      for (int64_t r = begin; r < end; ++r) append_head<T>(args, r, task % args.shape.kv_heads);
    });
  });
}
