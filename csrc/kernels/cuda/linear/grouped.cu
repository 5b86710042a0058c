#include "kernels/cuda/linear/grouped.h"

#include "common/divide_up.h"
#include "kernels/cuda/linear/few.cuh"

namespace sinkstream::cuda {

namespace {

// Runs along z; x and y as multiply_few says. Which weights are read depends on the kernels before.
template <WeightType kType, int kInputTiles, size_t kMostShared>
__global__ void __launch_bounds__(kLinearThreads,
                                  Shape<format_of(kType), kInputTiles, kMostShared>::kResident)
    linear_grouped_kernel(GroupedLinearArgs args) {
  DYNAMIC_SHARED(bf16, shared);
  wait_for_previous();
  if (int(blockIdx.z) >= *args.run_count) return;
  const ExpertRun run = args.runs[blockIdx.z];
  LinearArgs of_run;
  of_run.weights = args.weights;
  of_run.weights.tiles += run.expert * args.expert_bytes;
  of_run.splits = args.splits;
  if (args.bias != nullptr) of_run.bias = args.bias + run.expert * args.bias_stride;
  of_run.input = args.input;
  of_run.input_stride = args.input_stride;
  of_run.rows = run.count;
  of_run.out = args.out + run.first * args.out_stride;
  of_run.out_rows = args.out_rows;
  of_run.out_stride = args.out_stride;
  const auto row_of = [&](int i) {
    const int position = run.first + i;
    return int64_t{args.row_of == nullptr ? position : args.row_of[position]};
  };
  multiply_few<kType, kInputTiles, kMostShared>(of_run, shared, row_of, [] {});
}

template <WeightType kType>
Status launch_type(const GroupedLinearArgs& args, Stream stream) {
  return launch_few<kType>(args.run_rows, [&]<WeightType, int kInputTiles, size_t kMostShared>() {
    using S = Shape<format_of(kType), kInputTiles, kMostShared>;
    const auto blocks = unsigned(divide_up(args.weights.rows, S::kBlockRows));
    return launch(linear_grouped_kernel<kType, kInputTiles, kMostShared>,
                  dim3(blocks, unsigned(args.splits), unsigned(args.most_runs)),
                  dim3(kLinearThreads), S::kSharedBytes, stream, args);
  });
}

using Launch = Status(const GroupedLinearArgs& args, Stream stream);

}  // namespace

Status linear_grouped(const GroupedLinearArgs& args, Stream stream) {
  if (args.most_runs == 0) return kSuccess;
  static constexpr auto kLaunches =
      per_type<Launch*>([&]<WeightType kType>() { return launch_type<kType>; });
  return kLaunches[size_t(args.weights.type)](args, stream);
}

}  // namespace sinkstream::cuda
