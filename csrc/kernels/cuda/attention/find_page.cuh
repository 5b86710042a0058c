// Finds a page of a sequence and layer from SequencePages, on the GPU.
#pragma once

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/portable.h"

namespace sinkstream::cuda {

// `ordinal`: among the pages of Pages::layer, sink pages first, then the ring.
__device__ inline std::byte* page_at(const Pages& pages, const SequencePages& sequence,
                                     int64_t ordinal) {
  const int64_t of_layer = int64_t{sequence.sink_pages} + sequence.window_pages;
  const int32_t id = pages.ids[sequence.offset + pages.layer * of_layer + ordinal];
  return sequence.pool + id * pages.shape.bytes();
}

__device__ inline std::byte* ring_page(const Pages& pages, const SequencePages& sequence,
                                       int64_t block) {
  return page_at(pages, sequence, sequence.sink_pages + block % sequence.window_pages);
}

__device__ inline std::byte* scratch_page(const Pages& pages, const SequencePages& sequence,
                                          int64_t block) {
  return sequence.scratch + (block - sequence.scratch_block) * pages.shape.bytes();
}

// Where keys and values of a block are while a step's queries run.
__device__ inline std::byte* window_page(const Pages& pages, const SequencePages& sequence,
                                         int64_t block) {
  return block < sequence.scratch_block ? ring_page(pages, sequence, block)
                                        : scratch_page(pages, sequence, block);
}

}  // namespace sinkstream::cuda
