// Attention over the pages of a GPU, in the two-query form and with the one order of addition of
// kernels/attention.h: both ops give a query the same bits. Every key that a query sees is in its
// page already. Knows one layer; how rows got their `first` and `rank` is cache/window.h's affair.
//
// A split is one page. Scores are sums of 16-bit products in float32; m, p = exp(s − m) and l = Σ p
// are float32; p is rounded to 16 bits before it meets the values. int8 codes are multiplied as
// bfloat16, which holds them exactly.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/stream.h"

namespace sinkstream::cuda {

struct AttentionArgs {
  // [rows, heads, head_dim], 16-byte aligned, in device memory: float16 where pages are float16,
  // else bfloat16. Turned by the token's index, and by its rank.
  const void* query_window = nullptr;
  const void* query_sink = nullptr;
  void* out = nullptr;             // bfloat16 [rows, heads, head_dim]; aliases nothing. Those of
                                   // idle rows are left alone.
  const TokenRow* rows = nullptr;  // [row_count], in device memory
  int32_t row_count = 0;
  int32_t heads = 0;  // a multiple of shape.kv_heads, at most 128 to a key head; head h reads key
                      // head h / (heads / kv_heads)
  Pages pages;
  float scale = 0;                     // multiplies q · k: Note [Scores] of kernels/attention.h
  float soft_cap = 0;                  // c > 0, or 0: none
  const float* slopes = nullptr;       // ALiBi: [heads], finite, in device memory; null: none
  const float* sink_logits = nullptr;  // learned: [heads], finite or −∞, likewise; null: none

  // attention_prefill alone.
  int32_t span_rows = 0;  // divides row_count: each span of so many rows holds consecutive tokens
                          // of one sequence; idle ones, if any, are its last

  // attention_decode alone.
  int32_t page_slots = 0;    // the most pages that a row may see: Window::most_pages()
  float* scratch = nullptr;  // attention_scratch_floats(...), 16-byte aligned, in device memory
};

constexpr int64_t attention_scratch_floats(int64_t rows, int64_t heads, int64_t head_dim,
                                           int64_t page_slots) {
  return rows * heads * page_slots * (head_dim + 2);
}

// Rows of any sequences. A block takes one page of one key head for one row, and a second kernel
// states what they found: for so few rows that (row, key head) alone would leave the GPU idle.
Status attention_decode(const AttentionArgs& args, Stream stream);

// A block takes a few queries of one key head and walks over their pages. With spans of one row it
// is a decode without scratch, for batches that keep the GPU busy by themselves.
Status attention_prefill(const AttentionArgs& args, Stream stream);

}  // namespace sinkstream::cuda
