// A CUDA stream, and what a launch says, for those who include no CUDA header.
#pragma once

struct CUstream_st;

namespace sinkstream::cuda {

using Stream = CUstream_st*;  // cudaStream_t
using Status = int;           // cudaError_t: whether the kernels were launched, not what became of
                              // them
constexpr Status kSuccess = 0;

}  // namespace sinkstream::cuda
