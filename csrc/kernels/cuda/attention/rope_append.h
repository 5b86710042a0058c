// From the output of a layer's q/k/v map to the input of attention: bias, clip, norms of queries
// and keys, two rotations of each query, one of each key; keys and values go to their slots.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace sinkstream::cuda {

// Which numbers are normalized together: each head's, or those of all heads.
enum class NormExtent : int32_t { kHead, kAllHeads };

// All pointers are to device memory; none alias. Idle rows are neither read nor written.
struct RopeAppendArgs {
  Partials qkv;  // a row holds [heads, head_dim] of queries, then [kv_heads, head_dim] of keys,
                 // then the same of values; `data` 16-byte aligned, `stride` a multiple of 4
  const float* bias = nullptr;  // [(heads + 2 · kv_heads) · head_dim], or null
  float clip = 0;               // above 0: all numbers are limited to [−clip, clip]; 0: none
  NormWeights query_norm, key_norm;
  NormKind norm_kind = NormKind::kRms;
  NormExtent norm_extent = NormExtent::kHead;
  float norm_eps = 0;  // above 0 where there is a norm
  // kAllHeads only: rope_append_scratch_doubles(rows), overwritten.
  double* scratch = nullptr;
  // Queries are multiplied by 1 + temperature · ln(1 + ⌊rank / temperature_length⌋).
  float temperature = 0;
  int64_t temperature_length = 1;  // at least 1

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

constexpr int64_t rope_append_scratch_doubles(int64_t rows) { return 4 * rows; }

Status rope_append(const RopeAppendArgs& args, Stream stream);

}  // namespace sinkstream::cuda
