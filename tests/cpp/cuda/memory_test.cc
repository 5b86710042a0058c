#include "kernels/cuda/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "common/errors.h"

#include "cuda/counting_gpu.h"

namespace sinkstream::cuda {
namespace {

TEST(GpuMemory, SaysWhatWasAskedForAndWhatIsFree) {
  const Runtime& runtime = emulated_plugin().runtime;
  EXPECT_NE(allocate_device(runtime, 1000, "a test"), nullptr);
  try {
    allocate_device(runtime, int64_t{1} << 40, "the cache");
    FAIL() << "a terabyte was given";
  } catch (const CapacityError& error) {
    EXPECT_STREQ(error.what(),
                 "memory: the GPU cannot allocate 1.1 TB for the cache; 8.6 GB of 8.6 GB is "
                 "free. Choose a smaller window or fewer sequences, or free other GPU memory. "
                 "torch.cuda.empty_cache() frees what PyTorch keeps in this process.");
  }
  EXPECT_THROW(allocate_pinned(runtime, int64_t{1} << 40, "logits"), CapacityError);
}

// A GPU whose spare memory is at most 1,000 bytes.
struct Spare : CountingGpu {
  Spare() { spare.emplace(runtime(), nullptr, 1000); }

  std::optional<SpareMemory> spare;
};

TEST(SpareMemory, IsUsedAgainWithoutTheDriver) {
  Spare gpu;
  DeviceBlock block = gpu.spare->take(600, "a test");
  EXPECT_EQ(block.bytes, 600);
  std::byte* const address = block.memory.get();
  gpu.spare->keep(std::move(block));
  EXPECT_EQ(gpu.spare->kept_bytes(), 600);
  const int64_t calls = gpu.calls(), synchronizes = gpu.synchronizes();
  for (const int64_t bytes : {600, 300, 599}) {
    block = gpu.spare->take(bytes, "a test");
    EXPECT_EQ(block.memory.get(), address);
    EXPECT_EQ(block.bytes, 600) << "all of what was allocated";
    EXPECT_EQ(gpu.spare->kept_bytes(), 0);
    gpu.spare->keep(std::move(block));
  }
  EXPECT_EQ(gpu.calls(), calls);
  EXPECT_EQ(gpu.synchronizes(), synchronizes);
}

TEST(SpareMemory, LendsTheSmallestBlockThatIsLargeEnough) {
  Spare gpu;
  DeviceBlock blocks[] = {gpu.spare->take(400, "a test"), gpu.spare->take(200, "a test"),
                          gpu.spare->take(300, "a test")};
  for (DeviceBlock& block : blocks) gpu.spare->keep(std::move(block));
  EXPECT_EQ(gpu.spare->kept_bytes(), 900);
  EXPECT_EQ(gpu.spare->take(201, "a test").bytes, 300);
  EXPECT_EQ(gpu.spare->take(201, "a test").bytes, 400);
  EXPECT_EQ(gpu.spare->kept_bytes(), 200);
}

// A small use would hold a large block for as long as it likes.
TEST(SpareMemory, LendsNoMoreThanTwiceWhatIsAskedFor) {
  Spare gpu;
  gpu.spare->keep(gpu.spare->take(600, "a test"));
  DeviceBlock small = gpu.spare->take(299, "a test");
  EXPECT_EQ(small.bytes, 299);
  EXPECT_EQ(gpu.spare->kept_bytes(), 600);
  gpu.spare->keep(std::move(small));
  const int64_t calls = gpu.calls();
  for (const int64_t bytes : {600, 299, 400, 200}) {
    gpu.spare->keep(gpu.spare->take(bytes, "a test"));  // neither takes the other's
  }
  EXPECT_EQ(gpu.calls(), calls);
}

TEST(SpareMemory, IsBounded) {
  Spare gpu;
  gpu.spare->keep(gpu.spare->take(1001, "a test"));
  EXPECT_EQ(gpu.bytes(), 0) << "more than is ever kept";
  DeviceBlock oldest = gpu.spare->take(100, "a test"), first = gpu.spare->take(500, "a test"),
              second = gpu.spare->take(600, "a test");
  gpu.spare->keep(std::move(oldest));
  gpu.spare->keep(std::move(first));
  const int64_t synchronizes = gpu.synchronizes();
  gpu.spare->keep(std::move(second));
  EXPECT_EQ(gpu.spare->kept_bytes(), 600) << "the latest";
  EXPECT_EQ(gpu.bytes(), 600);
  EXPECT_EQ(gpu.synchronizes(), synchronizes + 2) << "work may still use what is freed";
  std::vector<DeviceBlock> many;
  for (int i = 0; i < 40; ++i) many.push_back(gpu.spare->take(1, "a test"));
  for (DeviceBlock& block : many) gpu.spare->keep(std::move(block));
  EXPECT_EQ(gpu.spare->kept_bytes(), gpu.bytes());
  EXPECT_LT(gpu.bytes(), 40);
}

TEST(SpareMemory, IsFreedWhereMemoryIsShort) {
  Spare gpu;
  SpareMemory other(gpu.runtime(), nullptr, 1000);
  other.keep(other.take(700, "a test"));
  gpu.spare->keep(gpu.spare->take(200, "a test"));
  gpu.set_memory(1000);
  const MemoryBlock fits = allocate_device(gpu.runtime(), 100, "a test");
  EXPECT_EQ(other.kept_bytes() + gpu.spare->kept_bytes(), 900) << "memory is not short";
  const MemoryBlock weights = allocate_device(gpu.runtime(), 900, "the weights");
  EXPECT_EQ(other.kept_bytes() + gpu.spare->kept_bytes(), 0);
  EXPECT_EQ(gpu.bytes(), 1000);
  EXPECT_THROW(gpu.spare->take(1, "a test"), CapacityError);
  EXPECT_EQ(gpu.bytes(), 1000);
}

TEST(SpareMemory, IsFreedWhenItsModelIsClosed) {
  Spare gpu;
  DeviceBlock late = gpu.spare->take(100, "a test");
  gpu.spare->keep(gpu.spare->take(200, "a test"));
  const int64_t synchronizes = gpu.synchronizes();
  gpu.spare->close();
  EXPECT_EQ(gpu.bytes(), 100);
  EXPECT_EQ(gpu.synchronizes(), synchronizes + 1);
  gpu.spare->keep(std::move(late));
  EXPECT_EQ(gpu.bytes(), 0);
  EXPECT_EQ(gpu.synchronizes(), synchronizes + 2);
  gpu.spare.reset();
  const MemoryBlock block =
      allocate_device(gpu.runtime(), 100, "a test");  // does not ask what was destroyed
  EXPECT_EQ(gpu.bytes(), 100);
}

// Each block has one user at a time, whichever thread frees what is kept in between.
TEST(SpareMemory, ServesThreads) {
  Spare gpu;
  const auto use = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 200; ++i) {
      DeviceBlock block = gpu.spare->take(1 + random() % 400, "a test");
      std::memset(block.memory.get(), static_cast<int>(seed), block.bytes);
      for (int64_t at = 0; at < block.bytes; at += 50) {
        ASSERT_EQ(block.memory.get()[at], static_cast<std::byte>(seed));
      }
      gpu.spare->keep(std::move(block));
      if (i % 20 == 0) gpu.spare->free_kept();
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t seed = 1; seed <= 3; ++seed) threads.emplace_back(use, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(gpu.spare->kept_bytes(), gpu.bytes());
  gpu.spare.reset();
  EXPECT_EQ(gpu.bytes(), 0);
}

}  // namespace
}  // namespace sinkstream::cuda
