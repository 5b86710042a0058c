// A GPU emulated on the CPU: runtime functions on host memory, kernels through the emulator, and
// all work done immediately.
#pragma once

#include "kernels/cuda/plugin.h"

namespace sinkstream::cuda {

// Its memory holds 0xFF, NaN in every floating-point type, until it is written.
const Plugin& emulated_plugin();

}  // namespace sinkstream::cuda
