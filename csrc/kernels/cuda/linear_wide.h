// `linear` for many rows of input, with the bits that each of them alone would have: what `linear`
// calls where there are more than kFewInputs.
#pragma once

#include "kernels/cuda/linear.h"

namespace sinkstream::cuda {

Status linear_wide(const LinearArgs& args, Stream stream);

}  // namespace sinkstream::cuda
