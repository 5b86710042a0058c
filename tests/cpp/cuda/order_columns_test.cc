#include "kernels/cuda/linear/order_columns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "cuda/device_array.h"
#include "cuda/tiles.h"
#include "cuda_emulator/orders.h"

namespace sinkstream::cuda {
namespace {

TEST(CudaOrderColumns, GivesColumnIWhatIsInColumnOrderI) {
  for (const int64_t cols : {32, 96, 256, 288}) {
    std::vector<int32_t> numbers(static_cast<size_t>(cols));
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));
    const DeviceArray<int32_t> order(numbers);
    const Bf16Rows input = random_bf16_rows(3, cols, 2);
    emulator::in_orders_of_run([&](const emulator::Order& threads) {
      DeviceArray<bf16> out(3 * cols);
      ASSERT_EQ(order_columns({.input = input.row(0),
                               .input_stride = input.stride,
                               .order = order.get(),
                               .rows = 3,
                               .cols = cols,
                               .out = out.get()},
                              nullptr),
                kSuccess);
      for (int64_t i = 0; i < 3 * cols; ++i) {
        ASSERT_EQ(out[i].bits, input.row(i / cols)[order[i % cols]].bits) << threads.name << i;
      }
    });
  }
}

TEST(CudaOrderColumns, SaysWhenItWasNotLaunched) {
  const Bf16Rows input = random_bf16_rows(1, 32, 3);
  const DeviceArray<int32_t> order(std::vector<int32_t>(32, 5));
  DeviceArray<bf16> out(32);
  OrderColumnsArgs args = {.input = input.row(0),
                           .input_stride = input.stride,
                           .order = order.get(),
                           .cols = 32,
                           .out = out.get()};
  EXPECT_EQ(order_columns(args, nullptr), kSuccess);
  EXPECT_TRUE(out.is_untouched(0, 32));
  args.rows = 1;
  emulator::fail_next_launch(2);
  EXPECT_EQ(order_columns(args, nullptr), 2);
}

}  // namespace
}  // namespace sinkstream::cuda
