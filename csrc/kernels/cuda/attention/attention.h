// Attention over pages on a GPU, with the two queries and the order of addition of
// kernels/attention.h: both ops give a query the same bits. All keys that a query sees must already
// be in their pages. Knows one layer; `first` and `rank` come from cache/window.h.
//
// A split is one page. Scores are float32 sums of 16-bit products; m, p = exp(s − m) and l = Σ p
// are float32; p is rounded to 16 bits before it is multiplied by the values. int8 codes are
// multiplied as bfloat16, which holds them exactly.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"

namespace sinkstream::cuda {

struct AttentionArgs {
  // [rows, heads, head_dim], 16-byte aligned, in device memory: float16 where pages are float16,
  // else bfloat16. Rotated by the token's index, and by its rank.
  const void* query_window = nullptr;
  const void* query_sink = nullptr;
  // bfloat16 [rows, heads, head_dim]; aliases nothing; idle rows are not written.
  void* out = nullptr;
  const TokenRow* rows = nullptr;  // [row_count], in device memory
  int32_t row_count = 0;
  int32_t heads = 0;  // a multiple of shape.kv_heads, at most 128 per key head; head h reads key
                      // head h / (heads / kv_heads)
  Pages pages;
  float scale = 0;                     // multiplies q · k: Note [Scores] of kernels/attention.h
  float soft_cap = 0;                  // c > 0, or 0: none
  const float* slopes = nullptr;       // ALiBi: [heads], finite, in device memory; null: none
  const float* sink_logits = nullptr;  // learned: [heads], finite or −∞, likewise; null: none

  // attention_prefill only.
  int32_t span_rows = 0;  // divides row_count: each span of this many rows holds consecutive tokens
                          // of one sequence, idle rows last

  // attention_decode only.
  //
  // Note: [Live pages]
  // The pages that the launch's rows see are numbered row by row: row r has those from
  // page_begins[r] on to page_begins[r + 1], less page_begins[0], as many as seen_pages() counts;
  // an idle row has none. So a launch costs what is live, however large the window is.
  const int32_t* page_begins = nullptr;  // [row_count + 1], ascending, in device memory
  int32_t page_capacity = 0;             // the most pages of all rows together
  float* scratch = nullptr;  // attention_scratch_floats(...), 16-byte aligned, in device memory
};

constexpr int64_t attention_scratch_floats(int64_t heads, int64_t head_dim, int64_t pages) {
  return heads * pages * (head_dim + 2);
}

// Rows of any sequences. As many blocks as the GPU runs at the same time share the live pages, and
// a second kernel merges the results. Heads that are too wide or too many for that are computed as
// by attention_prefill, in spans of one row.
Status attention_decode(const AttentionArgs& args, Stream stream);

// A block takes a few queries of one key head and walks over their pages. With spans of one row it
// decodes without scratch.
Status attention_prefill(const AttentionArgs& args, Stream stream);

}  // namespace sinkstream::cuda
