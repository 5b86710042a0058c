#include "kernels/cuda/embedding.h"

#include "common/divide_up.h"
#include "kernels/cuda/linear/weights.cuh"
#include "kernels/cuda/portable.h"

namespace sinkstream::cuda {
namespace {

constexpr int kThreads = 128;

template <WeightType kType>
__global__ void __launch_bounds__(kThreads) embedding_kernel(EmbeddingArgs args) {
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= args.table.cols) return;
  int32_t id = args.ids[row];
  if (id < 0) id = args.sampled[-1 - id];
  const bool is_token = id >= 0 && id < args.table.rows;
  args.out[row * args.table.cols + column] =
      is_token ? weight_at<format_of(kType)>(args.table, id, column) * args.scale : 0.0f;
}

using Kernel = void(EmbeddingArgs args);

}  // namespace

Status embedding(const EmbeddingArgs& args, Stream stream) {
  if (args.rows == 0) return kSuccess;
  static constexpr auto kKernels =
      per_type<Kernel*>([&]<WeightType kType>() { return embedding_kernel<kType>; });
  return launch(kKernels[size_t(args.table.type)],
                dim3(unsigned(divide_up(args.table.cols, kThreads)), unsigned(args.rows)), kThreads,
                0, stream, args);
}

}  // namespace sinkstream::cuda
