// `linear` for more than kFewInputs rows of input, on GPUs with enough shared memory. Each row has
// the same bits as on its own.
#pragma once

#include <cstddef>

#include "kernels/cuda/linear/linear.h"

namespace sinkstream::cuda {

Status linear_wide(const LinearArgs& args, Stream stream);

// Shared memory per block, in bytes.
size_t linear_wide_bytes(WeightType type);

}  // namespace sinkstream::cuda
