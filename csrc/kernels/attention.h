// Attention over sinks and window in the two-query form, for any number of tokens and sequences.
// Every key that a query sees is already in its page, including those of the same call.
//
// Note: [One order of addition]
// A split is one page. For each query and page: m = the largest visible score, then
// l = Σ exp(s − m) and o = Σ exp(s − m) · v from fresh accumulators, in an order that depends only
// on the page's rows. Then a left fold over the pages: sinks first, then window blocks in ascending
// order. Each table rounds at fixed points. So a query's result does not depend on the other
// queries of the call, on how tokens were split into calls, or on threads.
//
// Rows that a query does not see may hold anything, including NaN, and never reach an accumulator.
// Neither do their scales, where a page has them (Note [Int8] of page.h): a key's scale multiplies
// its row's score; a value's scale multiplies its row's weight, after the weight was added to l.
//
// Note: [Scores]
// A score is scale · (q · k). A soft-cap c turns it into c · tanh(score / c). ALiBi then subtracts
// slope · distance, measured in positions of the cache: t − i to window key i, rank − j to sink j.
// A learned sink logit is one more score in the softmax, after all pages, and has no value.
#pragma once

#include "kernels/launch.h"
#include "kernels/page.h"

namespace sinkstream {

// Consecutive tokens of one sequence.
struct AttentionSpan {
  int64_t row = 0;    // row of the first token in `query_*`, `first` and `out`
  int64_t count = 0;  // tokens, at least 1
  int64_t index = 0;  // index of the first token
  int64_t sinks = 0;  // S: query t sees the keys j < min(S, t + 1)
  const std::byte* const* sink_pages = nullptr;    // [ceil(S / 64)]; key j is row j % 64 of j / 64
  const std::byte* const* window_pages = nullptr;  // [window_page_count], a ring: key i >= S is
  int64_t window_page_count = 0;  // row (i − S) % 64 of page ((i − S) / 64) % window_page_count
};

struct AttentionArgs {
  const float* query_window = nullptr;  // [rows, heads, head_dim], rotated by the token's index
  const float* query_sink = nullptr;    // [rows, heads, head_dim], rotated by its rank
  float* out = nullptr;                 // [rows, heads, head_dim]; aliases nothing
  // [rows]: query t also sees the keys first[t] <= i <= t; S <= first[t]. None if first[t] > t.
  // Live window keys never span more than `window_page_count` blocks.
  const int64_t* first = nullptr;
  const int64_t* rank = nullptr;         // [rows], of the token; read with `slopes` only
  const AttentionSpan* spans = nullptr;  // [span_count]
  int64_t span_count = 0;
  int64_t rows = 0;   // tokens of all spans
  int64_t heads = 0;  // a multiple of shape.kv_heads; head h reads key head h / (heads / kv_heads)
  PageShape shape;    // of window pages; sink pages may differ only in type
  DType sink_type = DType::kFloat32;
  float scale = 0;                     // multiplies q · k, usually 1 / sqrt(head_dim)
  float soft_cap = 0;                  // c > 0, or 0: none
  const float* slopes = nullptr;       // ALiBi: [heads], finite; null: none
  const float* sink_logits = nullptr;  // learned: [heads], finite or −∞; null: none
  std::byte* scratch = nullptr;        // attention_scratch_bytes(...), 64-byte aligned
  int64_t scratch_pages = 0;           // that it was sized for; more work too, but slower
};

// Calls of up to this many rows are split over pages as well as heads and rows: heads alone would
// not keep all threads busy.
constexpr int64_t kSplitRows = 16;

// Enough for every table. `pages`: how many pages each query of a call of kSplitRows rows may see
// for the call to be split over them; with fewer rows, each may see more.
constexpr int64_t attention_scratch_bytes(int64_t heads, int64_t head_dim, int64_t pages,
                                          int threads) {
  const int64_t partial = kSplitRows * heads * pages * (head_dim + 16) * 4;
  const int64_t per_thread = 64 * (head_dim * 4 + kPageRows * 2 + 64) * 4;
  return partial + threads * per_thread + 4096;
}

using AttentionOp = void(const AttentionArgs&, const Launch&);

}  // namespace sinkstream
