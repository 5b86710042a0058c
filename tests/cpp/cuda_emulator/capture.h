// Launches that are recorded instead of run, and can be replayed any number of times: a CUDA graph.
// Arguments are copied when recorded, as in a graph.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cuda/cuda_stream.h"

namespace sinkstream::cuda::emulator {

using Capture = std::vector<std::function<Status()>>;

// Where this thread's launches are recorded; null: they run immediately.
inline thread_local Capture* capturing = nullptr;

}  // namespace sinkstream::cuda::emulator
