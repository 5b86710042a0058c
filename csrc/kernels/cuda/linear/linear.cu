#include "kernels/cuda/linear/linear.h"

#include <algorithm>

#include "common/divide_up.h"
#include "kernels/cuda/linear/few.cuh"
#include "kernels/cuda/linear/wide.h"

namespace sinkstream::cuda {

namespace {

template <WeightType kType, int kInputTiles, size_t kMostShared>
__global__ void __launch_bounds__(kLinearThreads,
                                  Shape<format_of(kType), kInputTiles, kMostShared>::kResident)
    linear_kernel(LinearArgs args) {
  DYNAMIC_SHARED(bf16, shared);
  // The weights do not depend on the kernel before, the inputs do.
  multiply_few<kType, kInputTiles, kMostShared>(
      args, shared, [](int i) { return int64_t{i}; }, [] { wait_for_previous(); });
}

template <WeightType kType>
Status launch_type(const LinearArgs& args, Stream stream) {
  return launch_few<kType>(args.rows, [&]<WeightType, int kInputTiles, size_t kMostShared>() {
    using S = Shape<format_of(kType), kInputTiles, kMostShared>;
    const auto blocks = unsigned(divide_up(args.weights.rows, S::kBlockRows));
    return launch(linear_kernel<kType, kInputTiles, kMostShared>,
                  dim3(blocks, unsigned(args.splits)), dim3(kLinearThreads), S::kSharedBytes,
                  stream, args);
  });
}

using Launch = Status(const LinearArgs& args, Stream stream);

Status linear_few(const LinearArgs& args, Stream stream) {
  static constexpr auto kLaunches =
      per_type<Launch*>([&]<WeightType kType>() { return launch_type<kType>; });
  return kLaunches[size_t(args.weights.type)](args, stream);
}

}  // namespace

Status linear(const LinearArgs& args, Stream stream) {
  if (args.rows > kFewInputs && linear_wide_bytes(args.weights.type) <= shared_limit()) {
    return linear_wide(args, stream);
  }
  for (int64_t first = 0; first < args.rows; first += kFewInputs) {
    LinearArgs few = args;
    few.rows = std::min<int64_t>(args.rows - first, kFewInputs);
    few.input = static_cast<const bf16*>(args.input) + first * args.input_stride;
    few.out += first * args.out_stride;
    if (const Status status = linear_few(few, stream); status != kSuccess) return status;
  }
  return kSuccess;
}

}  // namespace sinkstream::cuda
