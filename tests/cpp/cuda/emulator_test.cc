// The emulator itself: what each name of the subset does, in every order of threads, and what it
// says of kernels that leave it.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "cuda_emulator/orders.h"
#include "kernels/cuda/matrix.h"

namespace sinkstream::cuda {
namespace {

using emulator::in_every_order;

// Sums 256 numbers of a block: through shared memory, then through shuffles.
__global__ void __launch_bounds__(256) sum_kernel(const float* input, float* out) {
  SHARED(float, partial, [8]);
  float sum = input[blockIdx.x * blockDim.x + threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kWarp, sum, distance);
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < 8; ++warp) sum += partial[warp];
    out[blockIdx.x] = sum;
  }
}

TEST(Emulator, RunsBlocksThatMeetAtBarriers) {
  std::vector<float> input(3 * 256);
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i);
  in_every_order([&](const emulator::Order& order) {
    std::vector<float> out(3, -1);
    ASSERT_EQ(launch(sum_kernel, 3, 256, 0, Stream{}, input.data(), out.data()), kSuccess);
    for (int b = 0; b < 3; ++b) {
      EXPECT_EQ(out[b], 256 * (256 * b) + 255 * 128) << order.name << " " << b;
    }
  });
}


// out[lane] of every collective, one row each.
__global__ void collectives_kernel(int* out) {
  const int lane = threadIdx.x % 32;
  int* row = out + lane;
  const auto put = [&](int value) {
    *row = value;
    row += 32;
  };
  put(__shfl_sync(kWarp, 100 + lane, 5));
  put(__shfl_sync(kWarp, 100 + lane, 37));  // modulo 32
  put(__shfl_sync(kWarp, 100 + lane, lane / 8));
  put(__shfl_xor_sync(kWarp, 100 + lane, 3));
  put(__shfl_down_sync(kWarp, 100 + lane, 4));  // the last four keep their own
  put(static_cast<int>(__ballot_sync(kWarp, lane % 3 == 0)));
  put(__all_sync(kWarp, lane >= 0));
  put(__all_sync(kWarp, lane > 0));
  put(__any_sync(kWarp, lane == 31));
  put(__any_sync(kWarp, lane == 32));
  put(static_cast<int>(__shfl_xor_sync(kWarp, int64_t{lane} << 40, 1) >> 40));
}

TEST(Emulator, CollectivesDoWhatCudaSays) {
  in_every_order([&](const emulator::Order& order) {
    std::vector<int> out(11 * 32, -1);
    ASSERT_EQ(launch(collectives_kernel, 1, 32, 0, Stream{}, out.data()), kSuccess);
    for (int lane = 0; lane < 32; ++lane) {
      const int expected[] = {105, 105, 100 + lane / 8, 100 + (lane ^ 3),
                              lane < 28 ? 104 + lane : 100 + lane, 0x49249249, 1, 0, 1, 0,
                              lane ^ 1};
      for (int row = 0; row < 11; ++row) {
        EXPECT_EQ(out[row * 32 + lane], expected[row]) << order.name << row << " lane " << lane;
      }
    }
  });
}

}  // namespace
}  // namespace sinkstream::cuda
