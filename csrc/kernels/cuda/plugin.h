// What the library `_cuda` exports: one symbol, which returns tables of functions.
#pragma once

#include "kernels/cuda/ops.h"
#include "kernels/cuda/plugin_version.h"
#include "kernels/cuda/runtime.h"

namespace sinkstream::cuda {

constexpr char kPluginSymbol[] = "sinkstream_cuda_plugin";

struct Plugin {
  uint64_t version = kPluginVersion;  // first: a library from another build is read only this far
  // The compute capabilities that have machine code, such as "80 86 90a".
  const char* machine_code;
  bool has_ptx;  // whether the driver can compile the kernels for others
  Runtime runtime;
  Ops ops;
};

const Runtime& gpu_runtime();

}  // namespace sinkstream::cuda

extern "C" const sinkstream::cuda::Plugin* sinkstream_cuda_plugin();
