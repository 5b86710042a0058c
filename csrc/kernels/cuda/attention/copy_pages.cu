#include "kernels/cuda/attention/copy_pages.h"

#include "common/divide_up.h"
#include "kernels/cuda/attention/find_page.cuh"
#include "kernels/cuda/portable.h"

namespace sinkstream::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kParts = 4;  // of 16 bytes that a thread loads at once

// Block (page, part of it).
__global__ void __launch_bounds__(kThreads) copy_pages_kernel(CopyPagesArgs args) {
  wait_for_previous();
  const SequencePages sequence = args.pages.sequences[args.sequence];
  const int64_t block = args.block + blockIdx.x;
  const int64_t parts = args.pages.shape.bytes() / int64_t{sizeof(uint4)};
  const uint4* from = reinterpret_cast<const uint4*>(scratch_page(args.pages, sequence, block));
  uint4* to = reinterpret_cast<uint4*>(ring_page(args.pages, sequence, block));
  const int64_t first = int64_t{blockIdx.y} * kThreads * kParts + threadIdx.x;
  uint4 taken[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (first + i * kThreads < parts) taken[i] = from[first + i * kThreads];
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (first + i * kThreads < parts) to[first + i * kThreads] = taken[i];
  }
}

}  // namespace

Status copy_pages(const CopyPagesArgs& args, Stream stream) {
  constexpr int64_t kStretch = int64_t{kThreads} * kParts * int64_t{sizeof(uint4)};
  const int64_t bytes = args.pages.shape.bytes();
  const auto stretches = static_cast<unsigned>(divide_up(bytes, kStretch));
  return launch(copy_pages_kernel, dim3(args.count, stretches), dim3(kThreads), 0, stream, args);
}

}  // namespace sinkstream::cuda
