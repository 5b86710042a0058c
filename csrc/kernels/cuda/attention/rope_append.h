// From the output of a layer's q/k/v map to the input of attention: bias, head norms, two rotations
// of each query, one of each key; keys and values go to their slots.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"
#include "kernels/rope.h"

namespace sinkstream::cuda {

// All pointers are to device memory; none alias. Idle rows are neither read nor written.
struct RopeAppendArgs {
  Partials qkv;  // a row holds [heads, head_dim] of queries, then [kv_heads, head_dim] of keys,
                 // then the same of values; `data` 16-byte aligned, `stride` a multiple of 4
  const float* bias = nullptr;        // [(heads + 2 · kv_heads) · head_dim], or null
  const float* query_norm = nullptr;  // [head_dim], each query's RMS norm with `norm_eps`, or null
  const float* key_norm = nullptr;    // [head_dim], likewise of each key
  float norm_eps = 0;                 // above 0 where there is a norm

  int64_t rows = 0;                  // at least 1
  int32_t heads = 0;                 // at least 1, a multiple of pages.shape.kv_heads
  const TokenRow* tokens = nullptr;  // [rows]; rows that are not idle have distinct slots

  Rotation by_index;  // of window queries and of keys; [rows, rotary_dim / 2]
  Rotation by_rank;   // of sink queries; the same rotary_dim and pairing

  Pages pages;
  // [rows, heads, head_dim], 4-byte aligned: float16 if the pages are, else bfloat16.
  void* query_window = nullptr;
  // Likewise.
  void* query_sink = nullptr;
};

Status rope_append(const RopeAppendArgs& args, Stream stream);

}  // namespace sinkstream::cuda
