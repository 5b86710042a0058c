// A CUDA stream and the status of a launch, without a CUDA header.
#pragma once

struct CUstream_st;

namespace sinkstream::cuda {

using Stream = CUstream_st*;  // cudaStream_t
using Status = int;           // cudaError_t: whether the launch succeeded, not the kernels' outcome
constexpr Status kSuccess = 0;

}  // namespace sinkstream::cuda
