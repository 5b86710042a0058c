// Writes tokens into their slots. A key is rotated once, by its own index, rounded to the cache's
// type and never touched again. Rows of the page that are not written keep their bytes.
#pragma once

#include "kernels/launch.h"
#include "kernels/page.h"
#include "kernels/rope.h"

namespace sinkstream {

// A slot: a row of a page.
struct Slot {
  std::byte* page = nullptr;  // PageShape::bytes(), 64-byte aligned
  int64_t row = 0;            // [0, kPageRows)
};

struct AppendArgs {
  const float* keys = nullptr;  // [rows, key_stride], a row holds [kv_heads, head_dim]; not rotated
  const float* values = nullptr;  // [rows, value_stride], likewise
  int64_t key_stride = 0;         // floats from one row to the next
  int64_t value_stride = 0;
  const Slot* slots = nullptr;  // [rows], all distinct
  int64_t rows = 0;
  PageShape shape;
  Rotation rotation;  // of each row's index
};

using AppendOp = void(const AppendArgs&, const Launch&);

}  // namespace sinkstream
