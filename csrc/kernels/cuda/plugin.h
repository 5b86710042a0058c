// The one thing that the library `_cuda` exports: what it can do, as tables of functions.
#pragma once

#include "kernels/cuda/ops.h"
#include "kernels/cuda/runtime.h"

namespace sinkstream::cuda {

// A library of another build of the package is refused, not called. A function more or less shows
// in the sizes of the tables; this is raised when arguments change.
constexpr int32_t kPluginVersion = 3;
constexpr char kPluginSymbol[] = "sinkstream_cuda_plugin";

struct Plugin {
  int32_t version = kPluginVersion;
  int32_t table_bytes = sizeof(Runtime) + sizeof(Ops);
  Runtime runtime;
  Ops ops;
};

const Runtime& gpu_runtime();

}  // namespace sinkstream::cuda

extern "C" const sinkstream::cuda::Plugin* sinkstream_cuda_plugin();
