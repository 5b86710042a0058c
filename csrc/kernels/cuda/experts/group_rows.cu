#include "kernels/cuda/experts/group_rows.h"

#include "kernels/cuda/portable.h"

namespace sinkstream::cuda {
namespace {

constexpr int kMostWarps = 32;
constexpr int64_t kMostCounts = 8192;  // of all warps: 32 KiB

// The sum over the lanes before this one.
__device__ inline int sum_before(int x) {
  const int lane = int(threadIdx.x) % kWarpSize;
  int sum = x;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int other = __shfl_sync(kWarp, sum, lane >= distance ? lane - distance : lane);
    if (lane >= distance) sum += other;
  }
  return sum - x;
}

// Turns an expert's number of rows into its first position, and lists the runs. One warp.
__device__ inline void list_runs(const GroupRowsArgs& args, int32_t* rows_of) {
  const int lane = int(threadIdx.x) % kWarpSize, experts = int(args.experts);
  const int run_rows = int(args.run_rows);
  const int each = divide_up(experts, kWarpSize), begin = lane * each;
  const int end = begin + each < experts ? begin + each : experts;
  int rows = 0, runs = 0;
  for (int e = begin; e < end; ++e) {
    rows += rows_of[e];
    runs += int(divide_up(rows_of[e], run_rows));
  }
  int first = sum_before(rows), run = sum_before(runs);
  if (lane == kWarpSize - 1) *args.run_count = run + runs;
  for (int e = begin; e < end; ++e) {
    const int count = rows_of[e];
    rows_of[e] = first;
    for (int done = 0; done < count; done += run_rows) {
      const int left = count - done;
      args.runs[run++] = {e, first + done, left < run_rows ? left : run_rows};
    }
    first += count;
  }
}

// One block. Each warp takes a part of the rows, one after the other, with a lane for each choice:
// the choices of a row differ, so that no two lanes count at the same place.
__global__ void __launch_bounds__(kMostWarps* kWarpSize) group_rows_kernel(GroupRowsArgs args) {
  DYNAMIC_SHARED(int32_t, shared);  // [warps + 1][experts]
  const int warps = int(blockDim.x) / kWarpSize, warp = int(threadIdx.x) / kWarpSize;
  const int lane = int(threadIdx.x) % kWarpSize, experts = int(args.experts);
  int32_t* const counts = shared + warp * experts;   // of this warp; then of all before it
  int32_t* const firsts = shared + warps * experts;  // of all warps; then first positions
  const int64_t begin = args.rows * warp / warps, end = args.rows * (warp + 1) / warps;
  wait_for_previous();

  for (int e = lane; e < experts; e += kWarpSize) counts[e] = 0;
  __syncwarp();
  const auto for_each_choice = [&](const auto& body) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = row * args.chosen + lane; i < (row + 1) * args.chosen; i += kWarpSize) {
        if (args.ids[i] >= 0) body(row, i, args.ids[i]);
      }
      __syncwarp();
    }
  };
  for_each_choice([&](int64_t, int64_t, int expert) { ++counts[expert]; });
  __syncthreads();

  for (int e = int(threadIdx.x); e < experts; e += int(blockDim.x)) {
    int sum = 0;
    for (int w = 0; w < warps; ++w) {
      const int count = shared[w * experts + e];
      shared[w * experts + e] = sum;
      sum += count;
    }
    firsts[e] = sum;
  }
  __syncthreads();
  if (warp == 0) list_runs(args, firsts);
  __syncthreads();

  for_each_choice([&](int64_t row, int64_t i, int expert) {
    const int position = firsts[expert] + counts[expert]++;
    args.positions[i] = position;
    args.row_of[position] = int(row);
  });
}

}  // namespace

Status group_rows(const GroupRowsArgs& args, Stream stream) {
  if (args.rows == 0) return kSuccess;
  int64_t warps = kMostCounts / args.experts;
  if (warps > kMostWarps) warps = kMostWarps;
  if (warps > args.rows) warps = args.rows;
  return launch(group_rows_kernel, dim3(1), dim3(unsigned(warps * kWarpSize)),
                size_t((warps + 1) * args.experts) * sizeof(int32_t), stream, args);
}

}  // namespace sinkstream::cuda
