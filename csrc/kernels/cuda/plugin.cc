// The one exported symbol. A new op goes into ops.h and ops.cc.
#include "kernels/cuda/plugin.h"

extern "C" __attribute__((visibility("default"))) const sinkstream::cuda::Plugin*
sinkstream_cuda_plugin() {
  static const sinkstream::cuda::Plugin plugin = {.machine_code = SINKSTREAM_MACHINE_CODE,
                                                  .has_ptx = SINKSTREAM_HAS_PTX,
                                                  .runtime = sinkstream::cuda::gpu_runtime(),
                                                  .ops = sinkstream::cuda::all_ops()};
  return &plugin;
}
