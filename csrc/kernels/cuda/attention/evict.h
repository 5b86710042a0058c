// Moves tokens to other slots of their own sequence, in all its layers: kernels/evict.h on a GPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"
#include "kernels/rope.h"

namespace sinkstream::cuda {

// A slot of a sequence, the same in each of its layers.
struct SequenceSlot {
  int32_t page_ordinal = 0;  // among the layer's pages: sink pages, then the ring
  int32_t row = 0;           // [0, kPageRows)
};

// All pointers are to device memory.
struct EvictArgs {
  Pages pages;           // of the first layer
  int32_t layers = 0;    // how many from there on
  int32_t sequence = 0;  // entry of pages.sequences
  // [rows] each, moved in this order: a slot may be written once an earlier row has been read, and
  // none is read after it has been written.
  const SequenceSlot* from = nullptr;
  const SequenceSlot* to = nullptr;
  int32_t rows = 0;
  // One row, shared by all: the angles of the distance, without attention factor.
  Rotation rotation;
};

Status evict(const EvictArgs& args, Stream stream);

}  // namespace sinkstream::cuda
