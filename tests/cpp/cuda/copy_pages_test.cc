#include "kernels/cuda/copy_pages.h"

#include <gtest/gtest.h>

#include <vector>

#include "cuda_emulator/orders.h"
#include "kernels/page.h"
#include "kernels/test_stream.h"

namespace sinkstream::cuda {
namespace {

TEST(CudaCopyPages, CopiesEveryByteOfThePagesItIsGivenAndNoOther) {
  // From one byte short of a block's stretch to some stretches.
  for (const PageShape& shape : {PageShape{1, 32, DType::kInt8},
                                 {1, 48, DType::kBFloat16},
                                 {1, 64, DType::kFloat16},
                                 {3, 80, DType::kInt8},
                                 {8, 128, DType::kBFloat16}}) {
    emulator::in_every_order([&](const emulator::Order& order) {
      constexpr int32_t kPages = 9;
      const int64_t bytes = shape.bytes();
      const Bytes pool = nan_bytes(kPages * bytes);
      for (int64_t i = 0; i < kPages * bytes; ++i) {
        pool[i] = static_cast<std::byte>(i * 37 + i / bytes);
      }
      std::vector<std::byte> expected(pool.get(), pool.get() + kPages * bytes);
      const std::vector<int32_t> from = {8, 0, 0, 5}, to = {1, 7, 3, 6};
      for (size_t i = 0; i < from.size(); ++i) {
        std::copy_n(expected.begin() + from[i] * bytes, bytes, expected.begin() + to[i] * bytes);
      }
      EXPECT_EQ(copy_pages({.pool = pool.get(),
                            .page_bytes = bytes,
                            .from = from.data(),
                            .to = to.data(),
                            .count = static_cast<int32_t>(from.size())},
                           Stream{}),
                kSuccess);
      EXPECT_EQ(std::vector<std::byte>(pool.get(), pool.get() + kPages * bytes), expected)
          << order.name << " " << bytes << " bytes";
    });
  }
}

TEST(CudaCopyPages, SaysThatALaunchFailed) {
  emulator::fail_next_launch(7);
  EXPECT_EQ(copy_pages({.page_bytes = 64, .count = 1}, Stream{}), 7);
}

}  // namespace
}  // namespace sinkstream::cuda
