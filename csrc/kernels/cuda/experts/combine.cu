#include "kernels/cuda/experts/combine.h"

#include "common/divide_up.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/sum_splits.cuh"

namespace sinkstream::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 4;  // per thread

__device__ inline float4 add_times(const float4& x, float factor, const float4& sum) {
  return make_float4(fmaf(factor, x.x, sum.x), fmaf(factor, x.y, sum.y), fmaf(factor, x.z, sum.z),
                     fmaf(factor, x.w, sum.w));
}

__global__ void __launch_bounds__(kThreads) combine_kernel(CombineArgs args) {
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kColumns;
  if (column >= args.dim) return;
  float4 sum = make_float4(0, 0, 0, 0);
  if (args.tokens[row].sequence >= 0) {
    for (int64_t i = row * args.chosen; i < (row + 1) * args.chosen; ++i) {
      const float4 output = sum_of_splits4(args.outputs, args.positions[i], column);
      sum = add_times(output, args.weights[i], sum);
    }
    if (args.shared.data != nullptr) {
      float gate = 1;
      if (args.shared_gate.data != nullptr) {
        gate = 1.0f / (1.0f + exp_approx(-sum_of_splits(args.shared_gate, row, 0)));
      }
      sum = add_times(sum_of_splits4(args.shared, row, column), gate, sum);
    }
  }
  *reinterpret_cast<float4*>(args.out + row * args.dim + column) = sum;
}

}  // namespace

Status combine(const CombineArgs& args, Stream stream) {
  if (args.rows == 0) return kSuccess;
  const auto blocks = unsigned(divide_up(args.dim, kThreads * kColumns));
  return launch(combine_kernel, dim3(unsigned(args.rows), blocks), dim3(kThreads), 0, stream, args);
}

}  // namespace sinkstream::cuda
