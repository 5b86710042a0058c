// What changes from step to step: a step's tokens, and where their pages are. Kernels read it from
// device memory, so one captured graph serves every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/page.h"

namespace sinkstream::cuda {

// One token of a step. Kernels are given `first` and `rank`; they never derive them.
struct TokenRow {
  int64_t index = 0;      // in the endless stream
  int64_t first = 0;      // it also sees the window keys first <= i <= index; S <= first
  int64_t rank = 0;       // position of its query against the sinks
  int32_t sequence = -1;  // entry of Pages::sequences; −1: an idle row, which writes to no page and
                          // whose results nothing reads
};

// Where a sequence's pages are, and where Pages::ids lists them. Sink j is row j % 64 of sink page
// j / 64; window token i >= sinks is row (i − sinks) % 64 of block b = (i − sinks) / 64, which is
// in window page b % window_pages or in a scratch page: Note [Scratch pages] of
// model/forward_plan.h.
struct SequencePages {
  std::byte* pool = nullptr;  // page `id` begins at pool + id · PageShape::bytes()
  int64_t offset = 0;         // of its page ids: [layers][sink_pages + window_pages]
  int32_t sinks = 0;
  int32_t sink_pages = 0;    // ceil(sinks / 64)
  int32_t window_pages = 0;  // the ring: ceil(W / 64) + 1, or fewer for a short sequence
  // Blocks from this one on are in consecutive scratch pages, in every layer.
  int64_t scratch_block = std::numeric_limits<int64_t>::max();
  std::byte* scratch = nullptr;
};

// Note: [Pages on a GPU]
// A page has PageShape::bytes() bytes: for each key head its keys, then its values, each
// [64][head_dim] of float16, bfloat16 or int8, row by row. Int8 keys and int8 values are each
// followed by 64 float32 scales: Note: [Int8] of kernels/page.h.
struct Pages {
  const int32_t* ids = nullptr;              // in device memory
  const SequencePages* sequences = nullptr;  // in device memory
  int32_t layer = 0;
  PageShape shape;  // head_dim a multiple of 16, at most 512; never float32
};

// Output of a linear map: `splits` partial sums along K, which the reader adds in ascending order.
// The number of splits depends only on the layer's shape.
struct Partials {
  const float* data = nullptr;  // [splits][rows][stride]
  int32_t splits = 1;
  int64_t rows = 0;    // from one split to the next: the capacity in rows
  int64_t stride = 0;  // floats from one row to the next
};

// Rows of one expert that a block multiplies together: positions first to first + count − 1 of
// group_rows.
struct ExpertRun {
  int32_t expert = 0;
  int32_t first = 0;
  int32_t count = 0;
};

}  // namespace sinkstream::cuda
