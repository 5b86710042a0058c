// The emulated GPU as a library of its own, for tests of the whole package: what `_cuda` is on a
// machine with a GPU.
#include "cuda/emulated_gpu.h"

extern "C" __attribute__((visibility("default"))) const sinkstream::cuda::Plugin*
sinkstream_cuda_plugin() {
  return &sinkstream::cuda::emulated_plugin();
}
