// A GPU that is this processor: the runtime's functions over the host's memory, the kernels
// through the emulator, and everything done as soon as it is asked for.
#pragma once

#include "kernels/cuda/plugin.h"

namespace sinkstream::cuda {

// Its memory holds 0xFF, NaN in every floating-point type, until it is written.
const Plugin& emulated_plugin();

}  // namespace sinkstream::cuda
