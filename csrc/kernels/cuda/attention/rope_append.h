// From what the linear map of a layer's attention left to what attention reads: bias, the norms of
// heads, two rotations of each query, one of each key, and the key and value in their slot.
#pragma once

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/stream.h"
#include "kernels/rope.h"

namespace sinkstream::cuda {

// All pointers lead to device memory; none of them alias. An idle row is not read, and nothing is
// written for it.
struct RopeAppendArgs {
  Partials qkv;  // a row holds [heads, head_dim] of queries, then [kv_heads, head_dim] of keys,
                 // then as much of values; `data` 16-byte aligned, `stride` a multiple of 4
  const float* bias = nullptr;        // [(heads + 2 · kv_heads) · head_dim], or null
  const float* query_norm = nullptr;  // [head_dim], each query's RMS norm with `norm_eps`, or null
  const float* key_norm = nullptr;    // [head_dim], likewise of each key
  float norm_eps = 0;                 // above 0 where there is a norm

  int64_t rows = 0;                  // at least 1
  int32_t heads = 0;                 // at least 1, a multiple of pages.shape.kv_heads
  const TokenRow* tokens = nullptr;  // [rows]; rows that are not idle have slots all different

  Rotation by_index;  // of queries towards the window, and of keys; [rows, rotary_dim / 2]
  Rotation by_rank;   // of queries towards sinks; the same rotary_dim and pairing

  Pages pages;
  void* query_window = nullptr;  // [rows, heads, head_dim], 4-byte aligned: float16 where the
                                 // pages are, bfloat16 beside bfloat16 and int8 pages
  void* query_sink = nullptr;    // likewise
};

Status rope_append(const RopeAppendArgs& args, Stream stream);

}  // namespace sinkstream::cuda
