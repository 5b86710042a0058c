// What the library `_cuda` exports: one symbol, which returns tables of functions.
#pragma once

#include "kernels/cuda/ops.h"
#include "kernels/cuda/runtime.h"

namespace sinkstream::cuda {

// A library from another build of the package is rejected, not called. An added or removed function
// changes the tables' sizes; increment this when arguments change.
constexpr int32_t kPluginVersion = 5;
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
