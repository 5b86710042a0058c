// Copies complete pages of one layer from scratch to the ring: the part of a chunk that stays,
// after its queries have run. Note [Scratch pages] of model/forward_plan.h says why nothing live is
// overwritten.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"

namespace sinkstream::cuda {

struct CopyPagesArgs {
  Pages pages;
  int32_t sequence = 0;  // entry of pages.sequences, which has scratch pages
  int64_t block = 0;     // the first: at least SequencePages::scratch_block
  int32_t count = 0;     // of blocks from there on: in [1, SequencePages::window_pages]
};

Status copy_pages(const CopyPagesArgs& args, Stream stream);

}  // namespace sinkstream::cuda
