// The subset of CUDA that kernels may use: the names below and nothing else. nvcc compiles it
// directly; with SINKSTREAM_CUDA_EMULATED the same sources are plain C++ that runs on the CPU
// (tests/cpp/cuda_emulator), one fiber per thread.
//
// Note: [The subset]
//   kernels    __global__ void __launch_bounds__(n) name(Args args): arguments by value, trivially
//              copyable, and local variables that need no destructor
//   launch     launch(kernel, grid, block, dynamic_bytes, stream, args...) -> Status;
//              shared_limit(): the bytes of shared memory that a block may have on this GPU;
//              blocks_together(bytes, most): how many blocks of a kernel run at the same time
//   indices    threadIdx, blockIdx, blockDim, gridDim
//   shared     SHARED(type, name, [n][m]), 16-byte aligned; DYNAMIC_SHARED(type, name),
//              128-byte aligned, once per kernel. A bare __shared__ does not compile in
//              the emulator.
//   launches   wait_for_previous(): every thread calls it once, before it reads or writes anything
//              that another kernel writes or reads; Note: [Overlapping launches]
//   barriers   __syncthreads(), __syncwarp()
//   warps      __shfl_sync, __shfl_xor_sync, __shfl_down_sync, __ballot_sync, __all_sync,
//              __any_sync, all with the mask kWarp: whole warps take part
//   atomics    atomicAdd, atomicMax, atomicCAS on 32-bit integers, atomicAdd on 64-bit ones;
//              __threadfence()
//   vectors    int2, int4, uint2, uint4, float2, float4 and their make_ functions
//   numbers    bf16, f16 and their conversions below; exp_approx, product; fmaf, sqrtf, fmaxf and
//              the like
//   bits       __popc, __clz, __ffs, __float_as_uint, __uint_as_float
//   matrices   tensor_core.cuh
// A block never waits for another block: no spinning on global memory.
//
// Note: [Overlapping launches]
// From compute capability 9.0 on, a kernel may start as soon as all blocks of the one before it
// have started, so that its first instructions, and its loads of weights, take no time of their
// own. What is not a weight or an argument may be touched only after wait_for_previous(), which
// returns when the kernel before has ended and its writes are visible. Because every thread of
// every kernel waits, the kernels before that one have ended, too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_stream.h"

#if defined(SINKSTREAM_CUDA_EMULATED)

#include "cuda_emulator/emulator.h"

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <mutex>
#include <type_traits>
#include <unordered_map>

#include "kernels/cuda/current_gpu.h"

// 16: what the widest vector load, load_fragment4 and copy_async need.
#define SHARED(type, name, dimensions) __shared__ __align__(16) type name dimensions
// `extern` arrays of one name must have one type, so all kernels of a file share this one.
#define DYNAMIC_SHARED(type, name)                                     \
  extern __shared__ __align__(128) unsigned char dynamic_shared_all[]; \
  type* const name = reinterpret_cast<type*>(dynamic_shared_all)

namespace sinkstream::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(f16 x) { return __half2float(x); }
__device__ inline float to_float(float x) { return x; }

// Rounded to nearest even.
template <typename T>
__device__ inline T rounded(float x);
template <>
__device__ inline bf16 rounded<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline f16 rounded<f16>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline float rounded<float>(float x) {
  return x;
}

// Two 16-bit numbers in a word, as tensor_core.cuh expects them: the first in the low half.
template <typename T>
__device__ inline uint32_t pack(float first, float second);
template <>
__device__ inline uint32_t pack<bf16>(float first, float second) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);  // one instruction
  uint32_t word;
  memcpy(&word, &both, sizeof(word));
  return word;
}
template <>
__device__ inline uint32_t pack<f16>(float first, float second) {
  const __half2 both = __floats2half2_rn(first, second);
  uint32_t word;
  memcpy(&word, &both, sizeof(word));
  return word;
}

// e^x to about 2 units in the last place: the fast instruction on a GPU, the C library elsewhere.
__device__ inline float exp_approx(float x) { return __expf(x); }

// Queried once: a process has one GPU. Compute capability 8.0 has 163 KiB, 8.6, 8.9 and 12.0 have
// 99, 9.0 and 10.0 have 227.
inline size_t shared_limit() {
  static const size_t limit = [] {
    int gpu = 0, bytes = 48 * 1024;  // the default: every GPU has this much
    if (cudaGetDevice(&gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu) !=
            cudaSuccess) {
      cudaGetLastError();  // or the next launch would report it
    }
    return size_t(bytes);
  }();
  return limit;
}

// How many blocks with this much shared memory the GPU runs at the same time, at most `most` on a
// multiprocessor.
inline int64_t blocks_together(size_t dynamic_bytes, int64_t most) {
  static const int64_t multiprocessors = [] {
    const CurrentGpu current;
    int gpu = 0, count = 1;
    if (cudaGetDevice(&gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, gpu) != cudaSuccess) {
      cudaGetLastError();  // or the next launch would report it
    }
    return int64_t{count};
  }();
  constexpr size_t kReserved = 1024;  // per block; a multiprocessor has that much more
  const auto fit = int64_t((shared_limit() + kReserved) / (dynamic_bytes + kReserved));
  return multiprocessors * (fit < 1 ? 1 : fit < most ? fit : most);
}

// See Note: [Overlapping launches]. The next kernel may start once every block has called it.
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}

// What launch() must know of a kernel on this GPU.
struct KernelFacts {
  Status status = kSuccess;
  bool waits = false;  // compiled for a GPU whose kernels may overlap
};

// Found once for each kernel, which is then allowed all shared memory that a block may have: a
// limit set anew for each launch would race with other threads' launches.
inline KernelFacts facts_of(const void* kernel) {
  static std::mutex mutex;
  static std::unordered_map<const void*, KernelFacts> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(kernel); found != known.end()) return found->second;
  cudaFuncAttributes attributes;
  KernelFacts facts;
  facts.status = cudaFuncGetAttributes(&attributes, kernel);
  if (facts.status != cudaSuccess) return facts;
  facts.waits = attributes.ptxVersion >= 90;
  facts.status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      int(shared_limit() - attributes.sharedSizeBytes));
  if (facts.status == cudaSuccess) known.emplace(kernel, facts);
  return facts;
}

template <typename... Args>
Status launch(void (*kernel)(Args...), dim3 grid, dim3 block, size_t dynamic_bytes, Stream stream,
              const std::type_identity_t<Args>&... args) {
  const CurrentGpu current;
  const KernelFacts facts = facts_of(reinterpret_cast<const void*>(kernel));
  if (facts.status != kSuccess) return facts.status;
  cudaLaunchAttribute overlaps;
  overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlaps.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = dynamic_bytes;
  config.stream = stream;
  config.attrs = &overlaps;
  config.numAttrs = facts.waits ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace sinkstream::cuda

#endif

namespace sinkstream::cuda {

// x · y, rounded and never fused with a following sum, which would let the compiler decide the last
// bit. Kernels that must agree use this and fmaf.
#if defined(SINKSTREAM_CUDA_EMULATED)
inline float product(float x, float y) { return x * y; }  // compiled with -ffp-contract=off
#else
__device__ inline float product(float x, float y) { return __fmul_rn(x, y); }
#endif

constexpr unsigned kWarp = 0xFFFFFFFFu;  // the mask of all lanes
constexpr int kWarpSize = 32;

}  // namespace sinkstream::cuda
