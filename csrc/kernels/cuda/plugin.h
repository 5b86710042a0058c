// The one thing that the library `_cuda` exports: what it can do, as tables of functions.
#pragma once

#include "kernels/cuda/ops.h"
#include "kernels/cuda/runtime.h"

namespace sinkstream::cuda {

// Raised whenever a field of what lies behind the tables changes: a library of another build of the
// package is refused, not called.
constexpr int32_t kPluginVersion = 1;
constexpr char kPluginSymbol[] = "sinkstream_cuda_plugin";

struct Plugin {
  int32_t version = kPluginVersion;
  Runtime runtime;
  Ops ops;
};

const Runtime& card_runtime();

}  // namespace sinkstream::cuda

extern "C" const sinkstream::cuda::Plugin* sinkstream_cuda_plugin();
