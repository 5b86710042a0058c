#include "kernels/cuda/embedding.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cuda/device_array.h"
#include "cuda/tiles.h"
#include "cuda_emulator/orders.h"
#include "kernels/matrix.h"
#include "kernels/table.h"

namespace sinkstream::cuda {
namespace {

// A random table, as stored in a file and as on a GPU.
struct Table {
  Matrix matrix;
  DeviceArray<std::byte> tiles;

  Table(Storage storage, int64_t rows, int64_t cols)
      : matrix(random_matrix(storage, rows, cols, 3)),
        tiles(tiled_bytes(weight_type_of(storage), rows, cols)) {
    std::memcpy(tiles.get(), tiles_of(matrix).memory.get(), tiles.bytes());
  }

  EmbeddingArgs args(const DeviceArray<int32_t>& ids, DeviceArray<float>* out) const {
    return {.ids = ids.get(),
            .rows = ids.count(),
            .table = {weight_type_of(matrix.storage), matrix.rows, matrix.cols, tiles.get()},
            .out = out->get()};
  }
};

TEST(CudaEmbedding, GivesTheTablesRows) {
  ThreadPool pool(1);
  for (const Storage storage : kStorages) {
    for (const int64_t least : {32, 96, 128, 160, 576}) {
      const int64_t cols = whole_blocks(storage, least);
      const Table table(storage, 37, cols);
      const std::vector<int32_t> tokens = {0, 36, 16, 15, 36};
      std::vector<float> expected(tokens.size() * cols);
      reference_kernels().embedding({.ids = tokens.data(),
                                     .tokens = 5,
                                     .table = table.matrix.packed(),
                                     .out = expected.data()},
                                    {&pool});
      emulator::in_orders_of_run([&](const emulator::Order& order) {
        const DeviceArray<int32_t> ids(tokens);
        DeviceArray<float> out(static_cast<int64_t>(expected.size()));
        ASSERT_EQ(embedding(table.args(ids, &out), nullptr), kSuccess);
        for (int64_t i = 0; i < out.count(); ++i) {
          ASSERT_EQ(float_bits(out[i]), float_bits(expected[i]))
              << order.name << " " << row_of(storage).name << " " << cols << " number " << i;
        }
      });
    }
  }
}

TEST(CudaEmbedding, ScalesNumbersThatAreAlreadyFloat32) {
  for (const Storage storage : {Storage::kBF16, Storage::kQ8_0}) {
    const int64_t cols = whole_blocks(storage, 96);
    const Table table(storage, 20, cols);
    const DeviceArray<int32_t> ids(std::vector<int32_t>{7, 19});
    DeviceArray<float> plain(2 * cols), scaled(2 * cols);
    ASSERT_EQ(embedding(table.args(ids, &plain), nullptr), kSuccess);
    EmbeddingArgs args = table.args(ids, &scaled);
    args.scale = 55.4256f;
    ASSERT_EQ(embedding(args, nullptr), kSuccess);
    for (int64_t i = 0; i < scaled.count(); ++i) EXPECT_EQ(scaled[i], plain[i] * 55.4256f) << i;
  }
}

TEST(CudaEmbedding, TakesWhatTheStepBeforeHasDrawn) {
  const Table table(Storage::kBF16, 20, 40);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{sampled_by(1), 4, sampled_by(0)});
  DeviceArray<int32_t> sampled(std::vector<int32_t>{7, 19});
  DeviceArray<float> out(3 * 40);
  EmbeddingArgs args = table.args(ids, &out);
  args.sampled = sampled.get();
  ASSERT_EQ(embedding(args, nullptr), kSuccess);
  const int64_t expected[] = {19, 4, 7};
  for (int64_t i = 0; i < out.count(); ++i) {
    EXPECT_EQ(out[i], table.matrix.plain[expected[i / 40]][i % 40]) << i;
  }
  // The same launch, repeated as in a captured graph, after another token was sampled.
  sampled[1] = 2;
  ASSERT_EQ(embedding(args, nullptr), kSuccess);
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(out[i], table.matrix.plain[2][i]) << i;
}

TEST(CudaEmbedding, WhatIsNoTokenIsARowOfZeros) {
  const Table table(Storage::kBF16, 16, 40);
  const DeviceArray<int32_t> ids(
      std::vector<int32_t>{16, std::numeric_limits<int32_t>::max(), sampled_by(0)});
  const DeviceArray<int32_t> sampled(std::vector<int32_t>{-1});
  DeviceArray<float> out(3 * 40);
  EmbeddingArgs args = table.args(ids, &out);
  args.sampled = sampled.get();
  ASSERT_EQ(embedding(args, nullptr), kSuccess);
  for (int64_t i = 0; i < out.count(); ++i) EXPECT_EQ(out[i], 0) << i;
}

TEST(CudaEmbedding, SaysWhenItWasNotLaunched) {
  const Table table(Storage::kBF16, 20, 40);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{3});
  DeviceArray<float> out(40);
  EmbeddingArgs args = table.args(ids, &out);
  emulator::fail_next_launch(2);
  EXPECT_EQ(embedding(args, nullptr), 2);
  args.rows = 0;
  EXPECT_EQ(embedding(args, nullptr), kSuccess);
  EXPECT_TRUE(out.is_untouched(0, 40));
}

}  // namespace
}  // namespace sinkstream::cuda
