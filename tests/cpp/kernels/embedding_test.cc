#include "kernels/embedding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"

namespace sinkstream {
namespace {

class EmbeddingTest : public TableTest<&Kernels::embedding> {
 protected:
  void embed(const PackedMatrix& weights, const std::vector<int32_t>& ids, float* out,
             int threads = 1, float scale = 1) {
    ThreadPool pool(threads);
    table().embedding({.ids = ids.data(),
                       .tokens = static_cast<int64_t>(ids.size()),
                       .table = weights,
                       .out = out,
                       .scale = scale},
                      {&pool});
  }
};

TEST_P(EmbeddingTest, ReadsEveryRowRoundedOnce) {
  for (const Storage storage : kStorages) {
    for (const int64_t rows : {1, 15, 16, 17, 33}) {
      for (const int64_t cols : some_cols(storage)) {
        const Matrix matrix = random_matrix(storage, rows, cols, 5);
        std::vector<int32_t> ids;
        for (int64_t row = rows - 1; row >= 0; --row) ids.push_back(static_cast<int32_t>(row));
        ids.push_back(0);  // the same row twice
        Guarded out(static_cast<int64_t>(ids.size()) * cols, 3);
        embed(matrix.packed(), ids, out.get(), 2);
        EXPECT_TRUE(out.is_intact());
        for (size_t token = 0; token < ids.size(); ++token) {
          for (int64_t col = 0; col < cols; ++col) {
            ASSERT_EQ(out[token * cols + col], static_cast<float>(matrix.plain[ids[token]][col]))
                << name_of(matrix.packed().type) << " " << rows << " x " << cols << " id "
                << ids[token] << " column " << col;
          }
        }
      }
    }
  }
}

TEST_P(EmbeddingTest, MultipliesRowsByTheScale) {
  constexpr float kScale = 33.94113f;  // of Gemma with a hidden size of 1152
  for (const Storage storage : kStorages) {
    const int64_t cols = some_cols(storage).back();
    const Matrix matrix = random_matrix(storage, 17, cols, 5);
    const std::vector<int32_t> ids = {16, 3, 16};
    Guarded out(3 * cols, 3);
    embed(matrix.packed(), ids, out.get(), 2, kScale);
    EXPECT_TRUE(out.is_intact());
    for (int64_t i = 0; i < out.count(); ++i) {
      const double exact = double{kScale} * matrix.plain[ids[i / cols]][i % cols];
      ASSERT_NEAR(out[i], exact, 1.3e-7 * std::abs(exact)) << name_of(matrix.packed().type);
    }
  }
}

TEST_P(EmbeddingTest, ReadsEveryFloat16AsItIs) {
  constexpr int64_t kRows = 64, kCols = 1024;
  std::vector<uint16_t> patterns(kRows * kCols);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  const Panels panels = make_panels(packed_bytes(WeightType::kFloat16, kRows, kCols));
  pack_rows(Storage::kF16, reinterpret_cast<const std::byte*>(patterns.data()), 0, kRows, kCols,
            panels.get());
  Guarded out(kCols);
  for (int32_t row = 0; row < kRows; ++row) {
    embed({.type = WeightType::kFloat16, .rows = kRows, .cols = kCols, .panels = panels.get()},
          {row}, out.get());
    for (int64_t col = 0; col < kCols; ++col) {
      const float expected = to_float(f16{patterns[row * kCols + col]});
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(out[col]));
      } else {
        ASSERT_EQ(float_bits(out[col]), float_bits(expected)) << patterns[row * kCols + col];
      }
    }
  }
}

TEST_P(EmbeddingTest, WritesNothingForNoTokens) {
  const Matrix matrix = random_matrix(Storage::kQ8_0, 3, 32, 6);
  Guarded out(0);
  embed(matrix.packed(), {}, out.get());
  EXPECT_TRUE(out.is_intact());
}

SINKSTREAM_TEST_ALL_TABLES(EmbeddingTest);

}  // namespace
}  // namespace sinkstream
