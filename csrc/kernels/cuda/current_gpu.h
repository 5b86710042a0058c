// The GPU that a thread's calls go to. Includes the CUDA runtime: for the files of the plugin only.
#pragma once

#include <cuda_runtime.h>

namespace sinkstream::cuda {

// While it lives, the thread's calls go to one GPU, by default the one that a process uses; a
// thread of torch may have chosen another. Changes nothing, and so creates no context, if it is
// current.
class CurrentGpu {
 public:
  explicit CurrentGpu(int gpu = 0) : gpu_(gpu) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = gpu;
    if (before_ != gpu) cudaSetDevice(gpu);
  }
  ~CurrentGpu() {
    if (before_ != gpu_) cudaSetDevice(before_);
  }
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  int gpu_, before_ = 0;
};

// While it lives, the thread's calls do not disturb the captures of other threads: in the default
// mode torch's capture of a graph would fail when this thread allocates or waits.
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCaptureMode() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace sinkstream::cuda
