// Launches that are kept instead of run, and run again as often as a test likes: a CUDA graph.
// Arguments are copied when they are kept, as a graph does.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cuda/stream.h"

namespace sinkstream::cuda::emulator {

using Capture = std::vector<std::function<Status()>>;

// Where this thread's launches go; null: they run at once.
inline thread_local Capture* capturing = nullptr;

}  // namespace sinkstream::cuda::emulator
