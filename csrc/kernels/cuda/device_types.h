// What changes from token to token lies in device memory and is read there, so that one captured
// graph serves every token from the first on: which tokens a step has, and where their pages are.
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
  int64_t rank = 0;       // position of its query towards the sinks
  int32_t sequence = -1;  // entry of Pages::sequences; −1: the row is idle, nothing reads what it
                          // computes, and it writes to no page
};

// Where a sequence's pages lie, and where they stand in Pages::ids. Sink j is row j % 64 of sink
// page j / 64; window token i >= sinks is row (i − sinks) % 64 of block b = (i − sinks) / 64, which
// has window page b % window_pages, or a page of scratch: Note [Scratch pages] of
// model/forward_plan.h.
struct SequencePages {
  std::byte* pool = nullptr;  // page `id` begins at pool + id · PageShape::bytes()
  int64_t offset = 0;         // of its page ids: [layers][sink_pages + window_pages]
  int32_t sinks = 0;
  int32_t sink_pages = 0;    // ceil(sinks / 64)
  int32_t window_pages = 0;  // the ring: ceil(W / 64) + 1, or fewer for a short sequence
  // Blocks from this one on lie in scratch pages, one behind the other. Any layer's do.
  int64_t scratch_block = std::numeric_limits<int64_t>::max();
  std::byte* scratch = nullptr;
};

// Note: [Pages on a GPU]
// A page has PageShape::bytes() bytes: for each key head its keys, then its values, either
// [64][head_dim] numbers, float16, bfloat16 or int8, row by row. Behind the codes of int8 keys and
// of int8 values stand their 64 float32 scales: Note: [Int8] of kernels/page.h.
struct Pages {
  const int32_t* ids = nullptr;              // in device memory
  const SequencePages* sequences = nullptr;  // in device memory
  int32_t layer = 0;
  PageShape shape;  // head_dim a multiple of 16, at most 256; never float32
};

// What a linear map leaves: `splits` partial sums along K, which whoever reads them adds in rising
// order, from the first on. How many there are depends on the layer's shape alone.
struct Partials {
  const float* data = nullptr;  // [splits][rows][stride]
  int32_t splits = 1;
  int64_t rows = 0;    // between one split and the next: the rows there is room for
  int64_t stride = 0;  // floats from one row to the next
};

}  // namespace sinkstream::cuda
