#include "kernels/cuda/swiglu.h"

#include "common/divide_up.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/sum_splits.cuh"

namespace sinkstream::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 4;  // per thread

// Below about −88 exp overflows to infinity and the quotient is 0, as it should be.
__device__ inline float silu(float x) { return x / (1.0f + exp_approx(-x)); }

__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluArgs args) {
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kColumns;
  if (column >= args.dim) return;
  const float4 gate = sum_of_splits4(args.gate_up, row, column);
  const float4 up = sum_of_splits4(args.gate_up, row, args.dim + column);
  auto* out = static_cast<bf16*>(args.out) + row * args.out_stride + column;
  *reinterpret_cast<uint2*>(out) = make_uint2(pack<bf16>(silu(gate.x) * up.x, silu(gate.y) * up.y),
                                              pack<bf16>(silu(gate.z) * up.z, silu(gate.w) * up.w));
}

}  // namespace

Status swiglu(const SwigluArgs& args, Stream stream) {
  if (args.rows == 0) return kSuccess;
  constexpr int64_t kOfBlock = kThreads * kColumns;
  return launch(swiglu_kernel, dim3(unsigned(divide_up(args.dim, kOfBlock)), unsigned(args.rows)),
                kThreads, 0, stream, args);
}

}  // namespace sinkstream::cuda
