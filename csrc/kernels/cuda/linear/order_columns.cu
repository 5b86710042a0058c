#include "kernels/cuda/linear/order_columns.h"

#include "common/divide_up.h"
#include "kernels/cuda/portable.h"

namespace sinkstream::cuda {
namespace {

constexpr int kThreads = 256;

// A thread copies one number.
__global__ void __launch_bounds__(kThreads) order_columns_kernel(OrderColumnsArgs args) {
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int64_t column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (column >= args.cols) return;
  const auto* input = static_cast<const uint16_t*>(args.input) + row * args.input_stride;
  static_cast<uint16_t*>(args.out)[row * args.cols + column] = input[args.order[column]];
}

}  // namespace

Status order_columns(const OrderColumnsArgs& args, Stream stream) {
  if (args.rows == 0) return kSuccess;
  return launch(order_columns_kernel,
                dim3(unsigned(args.rows), unsigned(divide_up(args.cols, kThreads))), dim3(kThreads),
                0, stream, args);
}

}  // namespace sinkstream::cuda
