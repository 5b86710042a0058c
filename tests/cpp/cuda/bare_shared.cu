// Must not compile in the emulator, where a shared variable would be private to each thread: see
// the test ABareSharedVariableDoesNotCompile in tests/cpp/CMakeLists.txt.
#include "kernels/cuda/portable.h"

__global__ void bare_shared_kernel(float* out) {
  __shared__ float number;
  if (threadIdx.x == 0) number = 1;
  __syncthreads();
  out[threadIdx.x] = number;
}
