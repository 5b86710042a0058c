#include "kernels/cuda/linear/grouped.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "cuda/device_array.h"
#include "cuda/linear_call.h"
#include "cuda_emulator/block.h"
#include "cuda_emulator/orders.h"

namespace sinkstream::cuda {
namespace {

using emulator::in_orders_of_run;

constexpr int64_t kRows = 40;  // of weights

// Matrices of experts in memory of which no page is readable that belongs to an expert without
// rows: the processor reports any read.
struct Experts {
  Experts(Storage storage, int64_t cols, const std::vector<int64_t>& counts) {
    const WeightType type = weight_type_of(storage);
    constexpr int64_t kPage = 4096;
    bytes = divide_up(tiled_bytes(type, kRows, cols), kPage) * kPage;
    total = bytes * std::ssize(counts);
    void* const all =
        mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(all, MAP_FAILED);
    base = static_cast<std::byte*>(all);
    int32_t first = 0;
    for (int64_t e = 0; e < std::ssize(counts); ++e) {
      std::byte* const at = base + e * bytes;
      const Tiles tiles =
          tiles_of(random_matrix(storage, kRows, cols, static_cast<uint32_t>(e + 1)));
      std::memcpy(at, tiles.memory.get(), tiled_bytes(type, kRows, cols));
      matrices.push_back({type, kRows, cols, at});
      firsts.push_back(first);
      first += static_cast<int32_t>(counts[e]);
      if (counts[e] == 0) mprotect(at, bytes, PROT_NONE);
    }
    positions = first;
  }
  ~Experts() { munmap(base, total); }
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;

  int64_t bytes, total;
  std::byte* base;
  std::vector<TiledMatrix> matrices;
  std::vector<int32_t> firsts;  // positions
  int64_t positions;
};

std::vector<ExpertRun> runs_of(const std::vector<int64_t>& counts, int64_t run_rows) {
  std::vector<ExpertRun> runs;
  int64_t first = 0;
  for (int64_t e = 0; e < std::ssize(counts); ++e) {
    for (int64_t done = 0; done < counts[e]; done += run_rows) {
      runs.push_back({static_cast<int32_t>(e), static_cast<int32_t>(first + done),
                      static_cast<int32_t>(std::min(run_rows, counts[e] - done))});
    }
    first += counts[e];
  }
  return runs;
}

// The rows of each expert through `linear`, and all together.
void expect_the_bits_of_each(Storage storage, int64_t cols, const std::vector<int64_t>& counts,
                             int64_t run_rows, const char* order = "forward") {
  const Experts experts(storage, cols, counts);
  const int splits = linear_splits(2 * kRows, cols);
  const int64_t stride = kRows + 3, out_rows = experts.positions + 2;
  const Bf16Rows input = random_bf16_rows(experts.positions, cols, 2);
  std::vector<int32_t> rows_of;  // backwards
  for (int64_t i = experts.positions; i-- > 0;) rows_of.push_back(static_cast<int32_t>(i));
  const DeviceArray<int32_t> row_of(rows_of);
  const std::vector<float> biases = random_floats(std::ssize(counts) * stride, 3);
  const auto listed = runs_of(counts, run_rows);
  const DeviceArray<ExpertRun> runs(listed);
  const DeviceArray<int32_t> run_count(std::vector<int32_t>{static_cast<int32_t>(listed.size())});
  for (const bool gathers : {false, true}) {
    Guarded out(splits * out_rows * stride, 1);
    const float untouched = out[0];
    ASSERT_EQ(linear_grouped({.weights = experts.matrices[0],
                              .expert_bytes = experts.bytes,
                              .splits = splits,
                              .bias = biases.data(),
                              .bias_stride = stride,
                              .input = input.row(0),
                              .input_stride = input.stride,
                              .row_of = gathers ? row_of.get() : nullptr,
                              .runs = runs.get(),
                              .run_count = run_count.get(),
                              .most_runs = std::ssize(listed) + 2,
                              .run_rows = run_rows,
                              .out = out.get(),
                              .out_rows = out_rows,
                              .out_stride = stride},
                             nullptr),
              kSuccess);
    ASSERT_TRUE(out.is_intact());
    for (int64_t e = 0; e < std::ssize(counts); ++e) {
      for (int64_t i = 0; i < counts[e]; ++i) {
        const int64_t position = experts.firsts[e] + i;
        const int64_t row = gathers ? rows_of[position] : position;
        const auto alone =
            run(experts.matrices[e], input, row, 1, biases.data() + e * stride, splits);
        for (int64_t r = 0; r < kRows; ++r) {
          float sum = out[position * stride + r];
          for (int split = 1; split < splits; ++split) {
            sum += out[(split * out_rows + position) * stride + r];
          }
          ASSERT_EQ(float_bits(sum), float_bits(alone[r]))
              << sinkstream::row_of(storage).name << " expert " << e << " position " << position
              << " row " << r << ", runs of " << run_rows << ", order " << order;
        }
      }
    }
    for (int64_t i = 0; i < splits * out_rows * stride; ++i) {
      const bool is_padding = i / stride % out_rows >= experts.positions || i % stride >= kRows;
      if (is_padding) ASSERT_TRUE(same_bits(&out[i], &untouched, 1)) << "number " << i;
    }
  }
}

TEST(CudaLinearGrouped, GivesEachRowTheBitsOfLinear) {
  for (const Storage storage : kStorages) {
    expect_the_bits_of_each(storage, whole_blocks(storage, 320), {3, 0, 1, 9}, 8);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// More rows than a run has, for each of its lengths.
TEST(CudaLinearGrouped, GivesEachRowTheBitsOfLinearInRunsOfAnyLength) {
  for (const Storage storage : {Storage::kBF16, Storage::kMXFP4, Storage::kInt4}) {
    for (const int64_t run_rows : {8, 16, 32, 64}) {
      expect_the_bits_of_each(storage, 160, {0, run_rows + 3, 2, 0, 2 * run_rows, 1}, run_rows);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(CudaLinearGrouped, GivesEachRowTheBitsOfLinearInEveryOrder) {
  in_orders_of_run([](const emulator::Order& order) {
    for (const Storage storage : {Storage::kF32, Storage::kQ4_K, Storage::kFp8}) {
      expect_the_bits_of_each(storage, whole_blocks(storage, 192), {2, 0, 5}, 8, order.name);
    }
  });
}

// In chunks of inputs that follow each other, with several splits.
TEST(CudaLinearGrouped, GivesEachRowTheBitsOfLinearWhereColumnsAreMany) {
  constexpr int64_t kCols = 12800;
  static_assert(linear_splits(2 * kRows, kCols) > 1);
  for (const Storage storage : {Storage::kBF16, Storage::kMXFP4}) {
    expect_the_bits_of_each(storage, kCols, {2, 0, 1}, 8);
  }
}

TEST(CudaLinearGrouped, ReadsNothingWithoutRuns) {
  const Experts experts(Storage::kBF16, 64, {0, 0});
  const DeviceArray<int32_t> run_count(std::vector<int32_t>{0});
  DeviceArray<float> out(kRows);
  GroupedLinearArgs args = {.weights = experts.matrices[0],
                            .expert_bytes = experts.bytes,
                            .splits = 1,
                            .run_count = run_count.get(),
                            .most_runs = 3,
                            .run_rows = 8,
                            .out = out.get(),
                            .out_rows = 1,
                            .out_stride = kRows};
  EXPECT_EQ(linear_grouped(args, nullptr), kSuccess);
  EXPECT_TRUE(out.is_untouched(0, kRows));
  emulator::fail_next_launch(2);
  EXPECT_EQ(linear_grouped(args, nullptr), 2);
}

TEST(CudaLinearGrouped, TakesLongerRunsWhereExpertsHaveMoreRows) {
  EXPECT_EQ(rows_of_runs(1, 8, 128), 8);
  EXPECT_EQ(rows_of_runs(64, 8, 128), 8);
  EXPECT_EQ(rows_of_runs(128, 8, 128), 16);
  EXPECT_EQ(rows_of_runs(12, 4, 4), 16);
  EXPECT_EQ(rows_of_runs(256, 8, 128), 32);
  EXPECT_EQ(rows_of_runs(1024, 8, 128), 64);
}

}  // namespace
}  // namespace sinkstream::cuda
