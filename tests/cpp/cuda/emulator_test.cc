// The emulator itself: what each name of the subset does, in every order of threads, and what it
// reports for kernels outside the subset.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "cuda_emulator/orders.h"
#include "kernels/cuda/tensor_core.cuh"

namespace sinkstream::cuda {
namespace {

using emulator::in_every_order;

// Sums 256 numbers of a block: through shuffles, then through shared memory.
template <bool has_barrier>
__global__ void __launch_bounds__(256) sum_kernel(const float* input, float* out) {
  wait_for_previous();
  SHARED(float, partial, [8]);
  float sum = input[blockIdx.x * blockDim.x + threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kWarp, sum, distance);
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  if (has_barrier) __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < 8; ++warp) sum += partial[warp];
    out[blockIdx.x] = sum;
  }
}

// Whether three blocks compute their sums.
template <bool has_barrier>
bool sums_well() {
  std::vector<float> input(3 * 256), out(3, -1);
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i);
  EXPECT_EQ(launch(sum_kernel<has_barrier>, 3, 256, 0, Stream{}, input.data(), out.data()),
            kSuccess);
  return out == std::vector<float>{255 * 128, 767 * 128, 1279 * 128};
}

TEST(Emulator, RunsBlocksThatMeetAtBarriers) {
  in_every_order(
      [&](const emulator::Order& order) { EXPECT_TRUE(sums_well<true>()) << order.name; });
}

#if !defined(__SANITIZE_THREAD__)  // which reports the race: planted_kernel_faults.cc
TEST(Emulator, AMissingBarrierIsNoticedInSomeOrder) {
  int found = 0;
  in_every_order([&](const emulator::Order& order) { found += !sums_well<false>(); });
  EXPECT_GE(found, 1);
}
#endif

// out[row][lane]: one row per collective.
__global__ void collectives_kernel(int* out) {
  wait_for_previous();
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
      const int expected[] = {105,
                              105,
                              100 + lane / 8,
                              100 + (lane ^ 3),
                              lane < 28 ? 104 + lane : 100 + lane,
                              0x49249249,
                              1,
                              0,
                              1,
                              0,
                              lane ^ 1};
      for (int row = 0; row < 11; ++row) {
        EXPECT_EQ(out[row * 32 + lane], expected[row]) << order.name << row << " lane " << lane;
      }
    }
  });
}

// Each thread of a grid writes its own number at that index.
__global__ void indices_kernel(int* out) {
  wait_for_previous();
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned number = block * blockDim.x * blockDim.y * blockDim.z + thread;
  out[number] = static_cast<int>(number);
}

TEST(Emulator, EveryThreadOfEveryBlockRunsOnce) {
  in_every_order([&](const emulator::Order& order) {
    std::vector<int> out(3 * 5 * 2 * 4 * 3 * 2, -1);
    ASSERT_EQ(launch(indices_kernel, dim3(3, 5, 2), dim3(4, 3, 2), 0, Stream{}, out.data()),
              kSuccess);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], static_cast<int>(i)) << order.name;
  });
}

// The order in which threads and blocks run.
__global__ void turns_kernel(int* count, int* turns) {
  wait_for_previous();
  turns[atomicAdd(count, 1)] = static_cast<int>(blockIdx.x * 100 + threadIdx.x);
}

TEST(Emulator, OrdersAreWhatTheySay) {
  const auto turns_in = [](const emulator::Order& order) {
    emulator::set_order(order);
    int count = 0;
    std::vector<int> turns(3 * 64, -1);
    EXPECT_EQ(launch(turns_kernel, 3, 64, 0, Stream{}, &count, turns.data()), kSuccess);
    emulator::set_order({});
    return turns;
  };
  const std::vector<int> forward = turns_in({});
  std::vector<int> reverse = turns_in({.kind = emulator::Order::kReverse});
  const std::vector<int> random = turns_in({.kind = emulator::Order::kRandom, .seed = 1});
  EXPECT_TRUE(std::is_sorted(forward.begin(), forward.end()));
  EXPECT_TRUE(std::is_sorted(reverse.rbegin(), reverse.rend()));
  EXPECT_EQ(random, turns_in({.kind = emulator::Order::kRandom, .seed = 1}));
  EXPECT_NE(random, turns_in({.kind = emulator::Order::kRandom, .seed = 2}));
  EXPECT_TRUE(std::is_permutation(random.begin(), random.end(), forward.begin()));
}

__global__ void atomics_kernel(int* ints, unsigned long long* sum) {
  wait_for_previous();
  const int number = static_cast<int>(threadIdx.x);
  atomicAdd(&ints[0], number);
  atomicMax(&ints[1], number % 7 - 10);
  atomicCAS(&ints[2], 0, 1 + number);  // the first to arrive
  atomicAdd(sum, 1ull << 33);
}

TEST(Emulator, AtomicsAdd) {
  in_every_order([&](const emulator::Order& order) {
    int ints[3] = {5, -100, 0};
    unsigned long long sum = 1;
    ASSERT_EQ(launch(atomics_kernel, 1, 64, 0, Stream{}, ints, &sum), kSuccess);
    EXPECT_EQ(ints[0], 5 + 63 * 32) << order.name;
    EXPECT_EQ(ints[1], -4) << order.name;
    EXPECT_TRUE(ints[2] >= 1 && ints[2] <= 64) << order.name;
    EXPECT_EQ(sum, 1 + (64ull << 33)) << order.name;
  });
}

// The last block adds all blocks' sums.
__global__ void last_block_kernel(float* sums, unsigned* tickets, float* out) {
  wait_for_previous();
  SHARED(bool, is_last, );
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = static_cast<float>(blockIdx.x);
    __threadfence();
    is_last = atomicAdd(tickets, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (is_last && threadIdx.x == 32) {
    for (unsigned b = 0; b < gridDim.x; ++b) *out += sums[b];
  }
}

TEST(Emulator, TheLastBlockSeesWhatOthersWroteBeforeTheirFence) {
  in_every_order([&](const emulator::Order& order) {
    float sums[9], out = 0;
    unsigned tickets = 0;
    ASSERT_EQ(launch(last_block_kernel, 9, 64, 0, Stream{}, sums, &tickets, &out), kSuccess);
    EXPECT_EQ(out, 36) << order.name;
  });
}

__global__ void unwritten_kernel(float* out) {
  wait_for_previous();
  SHARED(float, number, );
  SHARED(bf16, half, [3]);
  DYNAMIC_SHARED(float, rest);
  out += 3 * blockIdx.x;
  out[0] = number;
  out[1] = to_float(half[2]);
  out[2] = rest[1];
  __syncthreads();
  if (threadIdx.x == 0) number = to_float(half[2] = rounded<bf16>(rest[1] = 1));
  __syncthreads();
}

TEST(Emulator, SharedMemoryIsNanInEveryBlockUntilItIsWritten) {
  float out[6] = {};
  ASSERT_EQ(launch(unwritten_kernel, 2, 1, 8, Stream{}, out), kSuccess);
  for (const float number : out) EXPECT_TRUE(std::isnan(number));
}

template <typename T>
__device__ T* borders() {
  SHARED(T, numbers, [3]);
  return numbers;
}

__global__ void variables_kernel(uintptr_t* out) {
  wait_for_previous();
  SHARED(char, first, );
  SHARED(char, second, [5]);
  DYNAMIC_SHARED(char, dynamic);
  out[0] = reinterpret_cast<uintptr_t>(&first);
  out[1] = reinterpret_cast<uintptr_t>(second);
  out[2] = reinterpret_cast<uintptr_t>(dynamic);
  out[3] = reinterpret_cast<uintptr_t>(borders<int>());
  out[4] = reinterpret_cast<uintptr_t>(borders<float>());
  out[5] = reinterpret_cast<uintptr_t>(borders<int>());
}

TEST(Emulator, EachSharedVariableIsItself) {
  uintptr_t out[6] = {};
  ASSERT_EQ(launch(variables_kernel, 1, 1, 1, Stream{}, out), kSuccess);
  EXPECT_EQ(out[5], out[3]);  // the same variable twice
  out[5] = 0;
  std::sort(std::begin(out), std::end(out));
  EXPECT_EQ(std::unique(std::begin(out), std::end(out)), std::end(out));
  for (const uintptr_t address : out) EXPECT_EQ(address % 16, 0u);
}

TEST(Emulator, LaunchesFailAsOnAGpu) {
  int count = 0, turns[64];
  const auto status = [&](dim3 grid, dim3 block, size_t dynamic_bytes) {
    return launch(turns_kernel, grid, block, dynamic_bytes, Stream{}, &count, turns);
  };
  EXPECT_NE(status(0, 32, 0), kSuccess);
  EXPECT_NE(status(dim3(1, 65536), 32, 0), kSuccess);
  EXPECT_NE(status(1, 0, 0), kSuccess);
  EXPECT_NE(status(1, 1025, 0), kSuccess);
  EXPECT_NE(status(1, dim3(64, 17), 0), kSuccess);
  EXPECT_NE(status(1, 32, 227 * 1024 + 1), kSuccess);
  emulator::fail_next_launch(77);
  EXPECT_EQ(status(1, 32, 0), 77);
  EXPECT_EQ(count, 0) << "A launch that fails runs nothing.";
  EXPECT_EQ(status(1, 32, 0), kSuccess);
  EXPECT_EQ(count, 32);
}

__global__ void waits_kernel(int times) {
  for (int i = 0; i < times; ++i) wait_for_previous();
}

TEST(Emulator, EveryThreadWaitsForThePreviousKernelOnce) {
  const auto fault_of_waiting = [](int times) -> std::string {
    try {
      EXPECT_EQ(launch(waits_kernel, 1, 32, 0, Stream{}, times), kSuccess);
    } catch (const emulator::Fault& fault) {
      return fault.what();
    }
    return "";
  };
  EXPECT_EQ(fault_of_waiting(1), "");
  EXPECT_NE(fault_of_waiting(0).find("returns without wait_for_previous()"), std::string::npos);
  EXPECT_NE(fault_of_waiting(2).find("waits twice"), std::string::npos);
}

enum class Wrong {
  kWaitsForTheReturned,
  kOtherBarrier,
  kOtherShuffle,
  kHalfAWarp,
  kTooMuchShared,
  kThrows
};

template <Wrong wrong>
__global__ void wrong_kernel(int* out) {
  wait_for_previous();
  const int thread = threadIdx.x;
  out += thread;
  if (wrong == Wrong::kWaitsForTheReturned) {
    if (thread >= 40) return;
    __syncthreads();
  }
  if (wrong == Wrong::kOtherBarrier) {
    if (thread < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  }
  if (wrong == Wrong::kOtherShuffle) {
    *out = thread == 37 ? __shfl_sync(kWarp, 1, 0) : __shfl_xor_sync(kWarp, 1, 0);
  }
  if (wrong == Wrong::kHalfAWarp) *out = __ballot_sync(0xFFFF, 1);
  if (wrong == Wrong::kTooMuchShared) {
    SHARED(int, numbers, [12289]);
    *out = numbers[thread];
  }
  if (wrong == Wrong::kThrows && thread == 5) throw 17;
}

// The emulator's message for it.
template <Wrong wrong>
std::string fault_of(int threads = 64) {
  int out[64];
  try {
    EXPECT_EQ(launch(wrong_kernel<wrong>, 1, threads, 0, Stream{}, out), kSuccess);
  } catch (const emulator::Fault& fault) {
    return fault.what();
  }
  return "";
}

testing::AssertionResult says(const std::string& fault, const std::string& part) {
  if (fault.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << fault << "\" lacks \"" << part << "\"";
}

TEST(Emulator, ADeadlockSaysWhoWaitsWhere) {
  in_every_order([&](const emulator::Order& order) {
    const std::string fault = fault_of<Wrong::kWaitsForTheReturned>();
    EXPECT_TRUE(says(fault,
                     "deadlock in block (0, 0, 0): 24 threads have returned, 40 wait in "
                     "__syncthreads at "))
        << order.name;
    EXPECT_TRUE(says(fault, "emulator_test.cc:")) << order.name;
  });
}

TEST(Emulator, WhoMeetsInDifferentPlacesIsAtFault) {
  in_every_order([&](const emulator::Order& order) {
    EXPECT_TRUE(says(fault_of<Wrong::kOtherBarrier>(), "while others wait for it in"));
    const std::string fault = fault_of<Wrong::kOtherShuffle>();
    EXPECT_TRUE(says(fault, "__shfl_sync at"));
    EXPECT_TRUE(says(fault, "__shfl_xor_sync at"));
  });
}

TEST(Emulator, OnlyWholeWarpsMeet) {
  EXPECT_TRUE(says(fault_of<Wrong::kHalfAWarp>(), "the mask must be kWarp"));
  EXPECT_TRUE(says(fault_of<Wrong::kOtherShuffle>(20), "must have 32 threads, but has 20"));
}

TEST(Emulator, StaticSharedMemoryHasALimit) {
  EXPECT_TRUE(says(fault_of<Wrong::kTooMuchShared>(), "48 KiB"));
}

TEST(Emulator, WhatAThreadThrowsComesOutOfTheLaunch) {
  EXPECT_THROW(fault_of<Wrong::kThrows>(), int);
  // The emulator stays usable.
  int count = 0, turns[64];
  EXPECT_EQ(launch(turns_kernel, 1, 64, 0, Stream{}, &count, turns), kSuccess);
  EXPECT_EQ(count, 64);
}

TEST(Emulator, BarriersFailOutsideAKernel) { EXPECT_THROW(__syncthreads(), emulator::Fault); }

}  // namespace
}  // namespace sinkstream::cuda
