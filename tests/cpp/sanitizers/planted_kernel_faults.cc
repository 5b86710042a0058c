// Deliberate mistakes in a CUDA kernel, which the sanitizers must report when the emulator runs it.
// `planted_kernel_faults <fault>` makes one. Without a sanitizer it has no visible effect.
#include <cstdio>
#include <string_view>

#include "cuda/device_array.h"
#include "kernels/cuda/tensor_core.cuh"

namespace sinkstream::cuda {
namespace {

enum class Fault {
  // for the thread sanitizer
  kMissingBarrier,
  kTwoWriters,
  kShuffleAsFence,
  kCopyWithoutBarrier,
  kMissingFence,
  // for the address and undefined behaviour sanitizers
  kSharedOverrun,
  kDynamicOverrun,
  kGlobalOverrun,
  kMisalignedVector,
  kEndlessRecursion,
};

struct Named {
  Fault fault;
  std::string_view name;
};
constexpr Named kFaults[] = {
    {Fault::kMissingBarrier, "missing_barrier"},
    {Fault::kTwoWriters, "two_writers"},
    {Fault::kShuffleAsFence, "shuffle_as_fence"},
    {Fault::kCopyWithoutBarrier, "copy_without_barrier"},
    {Fault::kMissingFence, "missing_fence"},
    {Fault::kSharedOverrun, "shared_overrun"},
    {Fault::kDynamicOverrun, "dynamic_overrun"},
    {Fault::kGlobalOverrun, "global_overrun"},
    {Fault::kMisalignedVector, "misaligned_vector"},
    {Fault::kEndlessRecursion, "endless_recursion"},
};

// Deeper than any stack: *end is never reached.
__device__ int depth_of(const int* end, int depth) {
  volatile int room[256];
  room[0] = depth;
  return depth == *end ? depth : depth_of(end, depth + 1) + room[0];
}

// One or two blocks of two warps; 64 ints of input and 64 of output. Makes one `Fault`; everything
// else is correct.
__global__ void __launch_bounds__(64) faulty_kernel(Fault fault, int* numbers, unsigned* ticket) {
  wait_for_previous();
  SHARED(int4, buffer, [16]);
  DYNAMIC_SHARED(int, dynamic);  // [64]
  int* shared = &buffer[0].x;
  const int thread = int(threadIdx.x), neighbour = (thread + 1) % 64;
  int* out = numbers + 64 + thread;

  switch (fault) {
    case Fault::kMissingBarrier:
      shared[thread] = thread;
      *out = shared[neighbour];
      break;
    case Fault::kTwoWriters:  // both blocks, each the same thread
      *out = thread;
      break;
    case Fault::kShuffleAsFence:
      shared[thread] = thread;
      *out = __shfl_sync(kWarp, thread, 0) + shared[thread ^ 1];
      break;
    case Fault::kCopyWithoutBarrier:
      if (thread < 16) copy_async(&buffer[thread], numbers + 4 * thread);
      copy_async_commit();
      copy_async_wait<0>();
      *out = shared[neighbour];
      break;
    case Fault::kMissingFence:  // the last block reads what the first has not published
      if (thread > 0) break;
      numbers[64 + blockIdx.x] = 1;
      if (atomicAdd(ticket, 1u) == 1) numbers[66] = numbers[64] + numbers[65];
      break;
    case Fault::kSharedOverrun: shared[64 + thread] = thread; break;
    case Fault::kDynamicOverrun: dynamic[1 + thread] = thread; break;
    case Fault::kGlobalOverrun: *out = numbers[128]; break;
    case Fault::kMisalignedVector: *out = reinterpret_cast<const int4*>(numbers + 1)->x; break;
    case Fault::kEndlessRecursion: *out = depth_of(numbers, 0); break;
  }
}

}  // namespace
}  // namespace sinkstream::cuda

int main(int count, char** arguments) {
  using namespace sinkstream::cuda;
  const std::string_view wanted = count == 2 ? arguments[1] : "";
  for (const auto& [fault, name] : kFaults) {
    if (name != wanted) continue;
    DeviceArray<int> numbers(128);
    unsigned ticket = 0;
    // Only these faults need two blocks, which race for the same words.
    const bool is_of_two = fault == Fault::kTwoWriters || fault == Fault::kMissingFence;
    return launch(faulty_kernel, is_of_two ? 2 : 1, 64, 64 * sizeof(int), Stream{}, fault,
                  numbers.get(), &ticket);
  }
  std::fprintf(stderr, "planted_kernel_faults: the fault must be one of");
  for (const auto& [fault, name] : kFaults) std::fprintf(stderr, " %s", name.data());
  std::fprintf(stderr, ".\n");
  return 2;
}
