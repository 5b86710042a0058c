// Copies whole pages of a pool, as those do who write to shared ones: Note [Shared pages] of
// cache/page_pool.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace sinkstream::cuda {

// All pointers are to device memory.
struct CopyPagesArgs {
  std::byte* pool = nullptr;      // page `id` begins at pool + id · page_bytes, 16-byte aligned
  int64_t page_bytes = 0;         // PageShape::bytes(): a multiple of 64
  const int32_t* from = nullptr;  // [count]
  const int32_t* to = nullptr;    // [count], all different, and none of `from`
  int32_t count = 0;              // at least 1
};

Status copy_pages(const CopyPagesArgs& args, Stream stream);

}  // namespace sinkstream::cuda
