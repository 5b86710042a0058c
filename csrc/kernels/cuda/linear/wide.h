// `linear` for many rows of input, with the bits that each of them alone would have: what `linear`
// calls where there are more than kFewInputs and the GPU has the shared memory.
#pragma once

#include <cstddef>

#include "kernels/cuda/linear/linear.h"

namespace sinkstream::cuda {

Status linear_wide(const LinearArgs& args, Stream stream);

// Bytes of shared memory of a block.
size_t linear_wide_bytes(WeightType type);

}  // namespace sinkstream::cuda
