// The emulated GPU as a shared library, for tests of the Python package: it replaces `_cuda`.
#include "cuda/emulated_gpu.h"

extern "C" __attribute__((visibility("default"))) const sinkstream::cuda::Plugin*
sinkstream_cuda_plugin() {
  return &sinkstream::cuda::emulated_plugin();
}
