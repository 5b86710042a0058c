#include "kernels/cuda/attention/copy_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda_emulator/orders.h"
#include "kernels/page.h"
#include "kernels/test_stream.h"

namespace sinkstream::cuda {
namespace {

// Bytes that differ from page to page.
Bytes some_bytes(int64_t count, int64_t page_bytes, int64_t step) {
  Bytes memory = nan_bytes(count);
  for (int64_t i = 0; i < count; ++i) {
    memory[i] = static_cast<std::byte>(i * step + i / page_bytes);
  }
  return memory;
}

std::vector<std::byte> copy_of(const Bytes& memory, int64_t count) {
  return {memory.get(), memory.get() + count};
}

TEST(CudaCopyPages, CopiesEveryByteOfABlockToItsPageInTheRingAndNoOther) {
  // From less than one block's part of a page to several parts.
  for (const PageShape& shape : {PageShape{1, 32, DType::kInt8},
                                 {1, 48, DType::kBFloat16},
                                 {1, 64, DType::kFloat16},
                                 {3, 80, DType::kInt8},
                                 {8, 128, DType::kBFloat16}}) {
    emulator::in_orders_of_run([&](const emulator::Order& order) {
      constexpr int64_t kPages = 12, kScratchPages = 5;
      const int64_t bytes = shape.bytes();
      const Bytes pool = some_bytes(kPages * bytes, bytes, 37);
      const Bytes scratch = some_bytes(kScratchPages * bytes, bytes, 41);
      // Sequence 0 is unused; in its layer 1, sequence 1 has a sink page and a ring of three.
      const std::vector<int32_t> ids = {-1, 9, 0, 1, 2, 11, 4, 8, 5};
      const std::vector<SequencePages> sequences = {{},
                                                    {.pool = pool.get(),
                                                     .offset = 1,
                                                     .sinks = 2,
                                                     .sink_pages = 1,
                                                     .window_pages = 3,
                                                     .scratch_block = 1'000'000'000'000,
                                                     .scratch = scratch.get() + bytes}};
      auto expected = copy_of(pool, kPages * bytes);
      // Blocks 10^12 + 1 to + 3 are scratch pages 2 to 4 and ring pages 2, 0 and 1.
      for (const auto& [from, to] : {std::pair{2, 5}, {3, 4}, {4, 8}}) {
        std::copy_n(scratch.get() + from * bytes, bytes, expected.begin() + to * bytes);
      }
      const auto scratch_before = copy_of(scratch, kScratchPages * bytes);
      const CopyPagesArgs args = {.pages = {ids.data(), sequences.data(), 1, shape},
                                  .sequence = 1,
                                  .block = 1'000'000'000'001,
                                  .count = 3};
      EXPECT_EQ(copy_pages(args, Stream{}), kSuccess);
      EXPECT_EQ(copy_of(pool, kPages * bytes), expected) << order.name << " " << bytes << " bytes";
      EXPECT_EQ(copy_of(scratch, kScratchPages * bytes), scratch_before);
    });
  }
}

TEST(CudaCopyPages, SaysThatALaunchFailed) {
  emulator::fail_next_launch(7);
  EXPECT_EQ(copy_pages({.pages = {.shape = {1, 32, DType::kInt8}}, .count = 1}, Stream{}), 7);
}

}  // namespace
}  // namespace sinkstream::cuda
