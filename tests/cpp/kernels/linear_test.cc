#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "kernels/tolerance.h"
#include "lanes.h"

namespace sinkstream {
namespace {

// The inputs of one call.
struct Inputs {
  std::vector<float> numbers;  // [tokens, stride], from `offset` floats past the start
  int64_t tokens;
  int64_t cols;
  int64_t stride;
  int64_t offset = 0;
  InputType type = InputType::kFloat32;

  const float* token(int64_t i) const { return numbers.data() + offset + i * stride; }
  Inputs slice(int64_t first, int64_t count) const {
    Inputs slice = *this;
    slice.offset += first * stride;
    slice.tokens = count;
    return slice;
  }
};

Inputs random_inputs(int64_t tokens, int64_t cols, InputType type, uint32_t seed,
                     int64_t padding = 3) {
  const int64_t stride = cols + padding;
  return {.numbers = random_floats(tokens * stride + 1, seed),
          .tokens = tokens,
          .cols = cols,
          .stride = stride,
          .offset = 1,
          .type = type};
}

void run(const Kernels& table, const Inputs& inputs, const std::vector<LinearPart>& parts,
         ThreadPool& pool, std::byte* scratch) {
  table.linear({.input = inputs.token(0),
                .input_stride = inputs.stride,
                .tokens = inputs.tokens,
                .cols = inputs.cols,
                .input_type = inputs.type,
                .parts = parts.data(),
                .part_count = static_cast<int64_t>(parts.size()),
                .scratch = scratch},
               {&pool});
}

void run(const Kernels& table, const Inputs& inputs, const std::vector<LinearPart>& parts,
         int threads = 1) {
  ThreadPool pool(threads);
  const Panels scratch = make_panels(linear_scratch_bytes(inputs.tokens, inputs.cols, threads));
  run(table, inputs, parts, pool, scratch.get());
}

// One part, dense output.
std::vector<float> run(const Kernels& table, const Inputs& inputs, const Matrix& matrix,
                       int threads = 1) {
  Guarded out(inputs.tokens * matrix.rows);
  run(table, inputs, {{.weights = matrix.packed(), .out = out.get(), .out_stride = matrix.rows}},
      threads);
  return {out.get(), out.get() + out.count()};
}

// The largest Σ |weight · x| of any output: the unit of rounding errors.
double scale_of(const Matrix& matrix, const Inputs& inputs) {
  double largest = 0;
  for (int64_t token = 0; token < inputs.tokens; ++token) {
    for (const std::vector<double>& row : matrix.plain) {
      double sum = 0;
      for (int64_t col = 0; col < inputs.cols; ++col) {
        sum += std::abs(row[col] * inputs.token(token)[col]);
      }
      largest = std::max(largest, sum);
    }
  }
  return largest;
}

// Whether the order of sums is the same in every table: Note: [One order for integers of 8 bits].
bool has_one_order(const Matrix& matrix, InputType type) {
  return type == InputType::kInt8 && are_integers(matrix.packed().type);
}

class LinearTest : public TableTest<&Kernels::linear> {
 protected:
  // With which a table's kernels differ most.
  std::vector<InputType> main_types() const { return {table().native_input, InputType::kInt8}; }

  // Compares one shape with the reference, with gaps between the rows of input and output.
  void compare(const Matrix& matrix, const Inputs& inputs, bool has_bias, bool accumulates) {
    const int64_t gap = 2;
    const int64_t stride = matrix.rows + gap;
    const std::vector<float> bias = random_floats(matrix.rows, 7);
    const std::vector<float> before = random_floats(inputs.tokens * stride, 8);
    Guarded actual(inputs.tokens * stride, 5), expected(inputs.tokens * stride);
    const auto compute = [&](const Kernels& by, Guarded* out) {
      for (int64_t i = 0; accumulates && i < out->count(); ++i) (*out)[i] = before[i];
      run(by, inputs,
          {{.weights = matrix.packed(),
            .bias = has_bias ? bias.data() : nullptr,
            .out = out->get(),
            .out_stride = stride,
            .accumulate = accumulates}});
    };
    compute(table(), &actual);
    compute(reference_kernels(), &expected);
    EXPECT_TRUE(actual.is_intact());
    const double scale = scale_of(matrix, inputs) + 20;  // for the bias and the previous outputs
    for (int64_t token = 0; token < inputs.tokens; ++token) {
      const int64_t at = token * stride;
      ASSERT_LE(share_of_tolerance(actual.get() + at, expected.get() + at, matrix.rows, scale,
                                   DType::kFloat32),
                1)
          << name_of(matrix.packed().type) << " rows " << matrix.rows << " cols " << matrix.cols
          << " token " << token << " of " << inputs.tokens << " input " << name_of(inputs.type);
      for (int64_t i = 0; has_one_order(matrix, inputs.type) && i < matrix.rows; ++i) {
        ASSERT_EQ(float_bits(actual[at + i]), float_bits(expected[at + i]))
            << name_of(matrix.packed().type) << " cols " << matrix.cols << " token " << token
            << " of " << inputs.tokens << " row " << i;
      }
      for (int64_t i = 0; i < gap; ++i) {  // the gap must not be written
        const float left = actual[at + matrix.rows + i];
        ASSERT_TRUE(accumulates ? left == before[at + matrix.rows + i] : std::isnan(left));
      }
    }
  }
};

TEST_P(LinearTest, EqualsTheReferenceForEveryShape) {
  int count = 0;
  for (const Storage storage : kStorages) {
    for (const int64_t rows : {1, 15, 16, 17, 33}) {
      for (const int64_t cols : some_cols(storage)) {
        const Matrix matrix = random_matrix(storage, rows, cols, 1);
        for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 65}) {
          if (tokens >= 64 && rows != 17) continue;
          for (const InputType type : kInputTypes) {
            // Values serve as indices: in each list, their remainders differ.
            const auto index = static_cast<int64_t>(type);
            if (!runs_case(3, {static_cast<int64_t>(storage), rows, cols, tokens, index})) continue;
            ++count;
            compare(matrix, random_inputs(tokens, cols, type, 2), count % 2 == 0, count % 3 == 0);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, GivesATokenTheSameBitsInEveryBatch) {
  constexpr int64_t kTokens = 65;
  for (const Storage storage : kStorages) {
    const Matrix matrix = random_matrix(storage, 33, whole_blocks(storage, 96), 3);
    for (const InputType type : kInputTypes) {
      const Inputs inputs = random_inputs(kTokens, matrix.cols, type, 4);
      const std::vector<float> together = run(table(), inputs, matrix);
      for (const int64_t batch : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 64}) {
        for (int64_t first = 0; first < kTokens; first += batch) {
          const int64_t count = std::min(batch, kTokens - first);
          const std::vector<float> apart = run(table(), inputs.slice(first, count), matrix);
          ASSERT_TRUE(same_bits(apart.data(), &together[first * matrix.rows], count * matrix.rows))
              << name_of(matrix.packed().type) << " batch " << batch << " at " << first;
        }
      }
    }
  }
}

bool same_or_both_nan(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : same_bits(&a, &b, 1);
}

// Where vectors and a tile unit might differ: underflow, overflow, infinities, and NaN of any
// payload. A token has only small or only large special numbers.
TEST_P(LinearTest, GivesATokenTheSameBitsInEveryBatchAtTheEdgesOfFloats) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int64_t kTokens = 17, kSmall = 9, kRows = 33;
  const float small[] = {0x1p-149f, -0x1p-130f, 0x1p-126f, -0x1.02p-125f, 0x1p-120f, 0.0f, -0.0f};
  const float large[] = {0x1p127f, -0x1.fep127f, 0x1p100f, -1.0f, kInfinity, std::nanf("")};
  std::mt19937 random(23);
  int tiny = 0, zeros = 0, infinite = 0, nan = 0;  // outputs
  for (const Storage storage : kStorages) {
    const Matrix matrix = random_matrix(storage, kRows, whole_blocks(storage, 96), 24);
    Inputs inputs = random_inputs(kTokens, matrix.cols, table().native_input, 25);
    for (int64_t token = 0; token < kTokens; ++token) {
      float* const x = &inputs.numbers[inputs.offset + token * inputs.stride];
      const uint32_t most =
          token % 3 == 0 ? 4 : 6;  // of the large ones: with infinity and NaN or without
      for (int64_t i = 0; i < matrix.cols; ++i) {
        if (token < kSmall) {
          x[i] = token == 0 ? small[random() % 2] : small[random() % 7];  // token 0: denormals
        } else if (random() % 16 == 0) {
          x[i] = large[random() % most];
        }
      }
    }
    const std::vector<float> together = run(table(), inputs, matrix);
    for (const float x : together) {
      tiny += x != 0 && std::abs(x) < 0x1p-100f;
      zeros += x == 0;
      infinite += std::isinf(x);
      nan += std::isnan(x);
    }
    for (const int64_t batch : {1, 2, 3, 8}) {
      for (int64_t first = 0; first < kTokens; first += batch) {
        const int64_t count = std::min(batch, kTokens - first);
        const std::vector<float> apart = run(table(), inputs.slice(first, count), matrix);
        for (int64_t i = 0; i < count * kRows; ++i) {
          ASSERT_TRUE(same_or_both_nan(apart[i], together[first * kRows + i]))
              << name_of(matrix.packed().type) << " token " << first + i / kRows << ": " << apart[i]
              << " in a batch of " << batch << ", " << together[first * kRows + i] << " among all";
        }
      }
    }
  }
  EXPECT_GT(tiny, 100);
  EXPECT_GT(zeros, 100);
  EXPECT_GT(infinite, 10);
  EXPECT_GT(nan, 10);
}

// Enough rows and tokens on one thread that a task has more bands than codes are multiplied by
// together, and more groups than are converted together.
TEST_P(LinearTest, GivesATokenTheSameBitsInALongTask) {
  constexpr int64_t kRows = 513, kTokens = 273, kFew = 7;
  for (const Storage storage :
       {Storage::kBF16, Storage::kQ8_0, Storage::kQ4_1, Storage::kQ2_K, Storage::kQ6_K}) {
    for (const InputType type : main_types()) {
      const int64_t cols = type == InputType::kInt8 ? 1056 : 416;  // it converts more together
      const Matrix matrix = random_matrix(storage, kRows, whole_blocks(storage, cols), 26);
      const Inputs inputs = random_inputs(kTokens, matrix.cols, type, 27);
      const std::vector<float> together = run(table(), inputs, matrix);
      for (int64_t first = 0; first < kTokens; first += 5 * kFew) {
        const int64_t count = std::min(kFew, kTokens - first);
        const std::vector<float> apart = run(table(), inputs.slice(first, count), matrix);
        ASSERT_TRUE(same_bits(apart.data(), &together[first * kRows], count * kRows))
            << name_of(matrix.packed().type) << " tokens from " << first << " input "
            << name_of(type);
      }
    }
  }
}

// Enough tokens, and long enough rows, that threads take them in several blocks.
TEST_P(LinearTest, GivesATokenTheSameBitsAmongMany) {
  struct Shape {
    int64_t tokens, cols;
  };
  constexpr int64_t kRows = 17, kFew = 7;
  for (const auto& [tokens, cols] : {Shape{512, 576}, Shape{101, 8192}}) {
    for (const Storage storage : kStorages) {
      const Matrix matrix = random_matrix(storage, kRows, whole_blocks(storage, cols), 17);
      for (const InputType type : main_types()) {
        // The numbers of tokens serve as indices: one is even, the other odd.
        const int64_t index = type == InputType::kInt8;
        if (!runs_case(2, {tokens, static_cast<int64_t>(storage), index})) continue;
        const Inputs inputs = random_inputs(tokens, matrix.cols, type, 18);
        const std::vector<float> together = run(table(), inputs, matrix, 2);
        // A prime step: pieces begin and end everywhere within the tiles of the tokens together.
        for (int64_t first = 0; first < tokens; first += 3 * kFew + 2) {
          const int64_t count = std::min(kFew, tokens - first);
          const std::vector<float> apart = run(table(), inputs.slice(first, count), matrix);
          ASSERT_TRUE(same_bits(apart.data(), &together[first * kRows], count * kRows))
              << name_of(matrix.packed().type) << " tokens from " << first << " of " << tokens
              << " input " << name_of(type);
        }
        for (const int64_t token : {int64_t{0}, tokens - 1}) {
          const std::vector<float> alone = run(table(), inputs.slice(token, 1), matrix);
          ASSERT_TRUE(same_bits(alone.data(), &together[token * kRows], kRows))
              << name_of(matrix.packed().type) << " token " << token << " of " << tokens
              << " input " << name_of(type);
        }
      }
    }
  }
}

// Note: [Inputs of a part]. Neighbors of one call may be of any two formats.
TEST_P(LinearTest, GivesAPartWithInputsOfItsOwnTheBitsOfACallOfItsOwn) {  // tsan
  constexpr int64_t kRows = 33, kStride = 35, kTokens = 21;
  const std::vector<int32_t> many = {4, 0, 4, 19, 3, 7, 8, 2, 20, 1, 11, 5, 6, 12, 13, 10, 9};
  const std::vector<int32_t> two = {20, 3}, two_others = {0, 17}, one = {17};
  std::vector<Storage> storages(kStorages.begin(), kStorages.end());
  std::shuffle(storages.begin(), storages.end(), std::mt19937(41));
  for (size_t i = 0; i < storages.size(); ++i) {
    const Storage next = storages[(i + 1) % storages.size()];
    const int64_t cols = 256;
    const Matrix matrices[] = {random_matrix(storages[i], kRows, cols, 42),
                               random_matrix(next, kRows, cols, 43)};
    for (const InputType type : kInputTypes) {
      const Inputs common = random_inputs(kTokens, cols, type, 44);
      const Inputs other = random_inputs(kTokens, cols, type, 45, 9);
      struct Reads {
        const Inputs* inputs;
        bool is_own;
        int64_t tokens;
        const std::vector<int32_t>* rows;  // null: the first `tokens`
      };
      const Reads reads[] = {
          {&common, false, kTokens, nullptr},
          {&other, true, 1, nullptr},
          {&other, true, 9, nullptr},
          {&common, true, std::ssize(many), &many},
          {&common, true, std::ssize(many), &many},
          {&other, true, 0, nullptr},
          {&other, true, 2, &two},
          {&other, true, 2, &two_others},
          {&common, true, 1, &one},
          {&common, false, kTokens, nullptr},
      };
      std::vector<Guarded> outs;
      for (const Reads& read : reads) outs.emplace_back(read.tokens * kStride, 3);
      std::vector<LinearPart> parts;
      for (size_t n = 0; n < std::size(reads); ++n) {
        const Reads& read = reads[n];
        LinearPart& part = parts.emplace_back();
        part.weights = matrices[n % 2].packed();
        part.out = outs[n].get();
        part.out_stride = kStride;
        if (!read.is_own) continue;
        part.input = read.inputs->token(0);
        part.input_stride = read.inputs->stride;
        part.tokens = read.tokens;
        part.row_of = read.rows == nullptr ? nullptr : read.rows->data();
      }
      run(table(), common, parts, 2);
      for (size_t n = 0; n < std::size(reads); ++n) {
        const Reads& read = reads[n];
        Inputs gathered = {.tokens = read.tokens, .cols = cols, .stride = cols, .type = type};
        for (int64_t token = 0; token < read.tokens; ++token) {
          const float* const row =
              read.inputs->token(read.rows == nullptr ? token : (*read.rows)[token]);
          gathered.numbers.insert(gathered.numbers.end(), row, row + cols);
        }
        const std::vector<float> apart = run(table(), gathered, matrices[n % 2]);
        EXPECT_TRUE(outs[n].is_intact());
        for (int64_t token = 0; token < read.tokens; ++token) {
          ASSERT_TRUE(same_bits(outs[n].get() + token * kStride, &apart[token * kRows], kRows))
              << name_of(parts[n].weights.type) << " part " << n << " token " << token << " input "
              << name_of(type);
          ASSERT_TRUE(std::isnan(outs[n][token * kStride + kRows]));
        }
      }
    }
  }
}

// The call's own list of rows, and what each token of a part is then multiplied by.
TEST_P(LinearTest, GathersTheRowsOfTheCall) {
  const Matrix matrix = random_matrix(Storage::kQ4_0, 17, 64, 46);
  const Inputs inputs = random_inputs(9, 64, table().native_input, 47);
  const std::vector<int32_t> rows = {8, 8, 0, 3};
  const std::vector<float> all = run(table(), inputs, matrix);
  std::vector<float> out(rows.size() * 17);
  const LinearPart part = {.weights = matrix.packed(), .out = out.data(), .out_stride = 17};
  ThreadPool pool(1);
  const Panels scratch = make_panels(linear_scratch_bytes(4, 64, 1));
  table().linear({.input = inputs.token(0),
                  .input_stride = inputs.stride,
                  .tokens = std::ssize(rows),
                  .row_of = rows.data(),
                  .cols = 64,
                  .input_type = inputs.type,
                  .parts = &part,
                  .part_count = 1,
                  .scratch = scratch.get()},
                 {&pool});
  for (size_t token = 0; token < rows.size(); ++token) {
    EXPECT_TRUE(same_bits(&out[token * 17], &all[rows[token] * 17], 17)) << token;
  }
}

TEST_P(LinearTest, GivesARowTheSameBitsWithAnyOtherRows) {
  for (const Storage storage : kStorages) {
    const int64_t cols = whole_blocks(storage, 64);
    const Matrix matrix = random_matrix(storage, 33, cols, 5);
    Matrix last = random_matrix(storage, 33, cols, 5);
    // A matrix of only the last row.
    const int64_t row_bytes = row_bytes_of(storage, cols);
    last.rows = 1;
    last.panels = make_panels(packed_bytes(weight_type_of(storage), 1, cols));
    pack_rows(storage, matrix.source.data() + 32 * row_bytes, 0, 1, cols, last.panels.get());
    const Inputs inputs = random_inputs(3, cols, table().native_input, 6);
    const std::vector<float> all = run(table(), inputs, matrix);
    const std::vector<float> alone = run(table(), inputs, last);
    for (int64_t token = 0; token < 3; ++token) {
      EXPECT_EQ(float_bits(alone[token]), float_bits(all[token * 33 + 32]));
    }
  }
}

TEST_P(LinearTest, GivesTheSameBitsOnAnyNumberOfThreads) {  // tsan
  for (const Storage storage : kStorages) {
    const int64_t cols = whole_blocks(storage, 64);
    const Matrix matrix = random_matrix(storage, 33 * 16 + 1, cols, 7);
    for (const int64_t tokens : {1, 2, 65}) {
      const Inputs inputs = random_inputs(tokens, cols, table().native_input, 8);
      const std::vector<float> one = run(table(), inputs, matrix, 1);
      for (const int threads : {2, 3}) {
        const std::vector<float> several = run(table(), inputs, matrix, threads);
        ASSERT_TRUE(same_bits(one.data(), several.data(), static_cast<int64_t>(one.size())))
            << name_of(matrix.packed().type) << " tokens " << tokens << " threads " << threads;
      }
    }
  }
}

// More threads than rows that a tile is padded to: each has room for its own copy of a token.
TEST_P(LinearTest, LaysATokenOutForEachThreadWithinTheScratch) {  // tsan
  constexpr int kThreads = 40;
  constexpr int64_t kRows = 3000, kGuard = 4096;
  ThreadPool pool(kThreads);
  for (const auto& [storage, cols] : {std::pair{Storage::kQ8_0, int64_t{96}},
                                      {Storage::kQ4_1, 64},
                                      {Storage::kQ2_K, 256},
                                      {Storage::kF32, 33},
                                      {Storage::kBF16, 95}}) {
    const Matrix matrix = random_matrix(storage, kRows, cols, 7);
    const int64_t bytes = linear_scratch_bytes(1, cols, kThreads);
    const Panels scratch = make_panels(bytes + kGuard);
    for (uint32_t repeat = 0; repeat < 30; ++repeat) {
      const Inputs inputs =
          random_inputs(1, cols, kInputTypes[repeat % std::size(kInputTypes)], repeat);
      const std::vector<float> expected = run(table(), inputs, matrix);
      std::memset(scratch.get(), 0xff, bytes + kGuard);  // NaN as floats of any type
      std::vector<float> out(kRows, std::numeric_limits<float>::quiet_NaN());
      run(table(), inputs, {{.weights = matrix.packed(), .out = out.data(), .out_stride = kRows}},
          pool, scratch.get());
      ASSERT_TRUE(same_bits(out.data(), expected.data(), kRows)) << cols << ", " << repeat;
      for (int64_t i = bytes; i < bytes + kGuard; ++i) {
        ASSERT_EQ(scratch[i], std::byte{0xff}) << "writes past the scratch";
      }
    }
  }
}

TEST_P(LinearTest, GivesAPartTheSameBitsWithAnyOtherParts) {
  for (const InputType type : kInputTypes) {
    const Inputs inputs = random_inputs(7, 256, type, 9);
    std::vector<Matrix> matrices;
    std::vector<Guarded> outs;
    int64_t rows = 0;
    for (const Storage storage : kStorages) {
      matrices.push_back(random_matrix(storage, rows, 256, 10));  // the first has no rows at all
      rows += 13;
    }
    for (const Matrix& matrix : matrices) outs.emplace_back(inputs.tokens * matrix.rows);
    std::vector<LinearPart> parts;
    for (size_t i = 0; i < matrices.size(); ++i) {
      parts.push_back(
          {.weights = matrices[i].packed(), .out = outs[i].get(), .out_stride = matrices[i].rows});
    }
    run(table(), inputs, parts, 2);
    for (size_t i = 0; i < matrices.size(); ++i) {
      EXPECT_TRUE(outs[i].is_intact());
      const std::vector<float> alone = run(table(), inputs, matrices[i]);
      EXPECT_TRUE(same_bits(outs[i].get(), alone.data(), outs[i].count()))
          << name_of(matrices[i].packed().type);
    }
  }
}

// Parts whose number of panels is odd, so that panels cannot all go in pairs.
TEST_P(LinearTest, WritesEachPartOfAnOddNumberOfPanelsAlone) {
  constexpr int64_t kCols = 96;
  const Matrix matrices[] = {
      random_matrix(Storage::kBF16, 48, kCols, 28), random_matrix(Storage::kBF16, 16, kCols, 29),
      random_matrix(Storage::kQ4_1, 16, kCols, 30), random_matrix(Storage::kBF16, 33, kCols, 31)};
  for (const int64_t tokens : {1, 9, 40}) {
    const Inputs inputs = random_inputs(tokens, kCols, table().native_input, 32);
    std::vector<Guarded> outs;
    std::vector<LinearPart> parts;
    for (const Matrix& matrix : matrices) outs.emplace_back(tokens * matrix.rows);
    for (size_t i = 0; i < std::size(matrices); ++i) {
      parts.push_back(
          {.weights = matrices[i].packed(), .out = outs[i].get(), .out_stride = matrices[i].rows});
    }
    run(table(), inputs, parts);
    for (size_t i = 0; i < std::size(matrices); ++i) {
      EXPECT_TRUE(outs[i].is_intact());
      const std::vector<float> alone = run(table(), inputs, matrices[i]);
      EXPECT_TRUE(same_bits(outs[i].get(), alone.data(), outs[i].count()))
          << "part " << i << ", " << tokens << " tokens";
    }
  }
}

TEST_P(LinearTest, RoundsInputsOnlyWhenAsked) {
  // 1 + 2^-9 rounds to 1 in bfloat16; a sum in which the ones cancel shows which was used.
  const float weights[2] = {1.0f, -1.0f};
  const Panels panels = make_panels(packed_bytes(WeightType::kFloat32, 1, 2));
  pack_rows(Storage::kF32, reinterpret_cast<const std::byte*>(weights), 0, 1, 2, panels.get());
  for (const InputType type : kInputTypes) {
    const Inputs inputs = {
        .numbers = {1.0f + 0x1p-9f, 1.0f}, .tokens = 1, .cols = 2, .stride = 2, .type = type};
    float out;
    run(table(), inputs,
        {{.weights = {.type = WeightType::kFloat32, .rows = 1, .cols = 2, .panels = panels.get()},
          .out = &out,
          .out_stride = 1}});
    EXPECT_EQ(out, without_integers(type) == InputType::kBFloat16 ? 0.0f : 0x1p-9f)
        << name_of(type);
  }
}

TEST_P(LinearTest, CountsUnitsInIntegersAsTheReferenceDoesAtTheEdgesOfFloats) {
  const auto inputs_up_to = [](float largest, int64_t cols) {
    std::vector<float> x(cols);
    for (int64_t i = 0; i < cols; ++i) x[i] = largest * static_cast<float>(i % 32 - 16) / 16;
    return x;
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Storage storage : kStorages) {
    if (!has_integers(format_of(weight_type_of(storage)))) continue;
    const int64_t cols = whole_blocks(storage, 32);
    const Matrix matrix = random_matrix(storage, 17, cols, 21);
    for (const float largest : {0.0f, 0x1p-140f, 0x1p-101f, 0x1p-100f, 0x1p-99f, 1.0f, 0x1p90f}) {
      for (const InputType type : {InputType::kInt16, InputType::kInt8}) {
        Inputs inputs = {.numbers = inputs_up_to(largest, cols),
                         .tokens = 1,
                         .cols = cols,
                         .stride = cols,
                         .type = type};
        compare(matrix, inputs, false, false);
        for (const float wrong : {kInfinity, -kInfinity, std::nanf("")}) {
          inputs.numbers[5] = wrong;
          for (const float x : run(table(), inputs, matrix)) EXPECT_TRUE(std::isnan(x)) << wrong;
          for (const float x : run(reference_kernels(), inputs, matrix)) EXPECT_TRUE(std::isnan(x));
        }
      }
    }
  }
}

TEST_P(LinearTest, AddsTheLargestCodesAndInputsWithoutOverflow) {
  for (const Storage storage : kStorages) {
    if (!has_integers(format_of(weight_type_of(storage)))) continue;
    const int64_t cols = whole_blocks(storage, 32);
    for (const int code : {0x00, 0xff, 0x80, 0x7f, 0x08, 0xf7}) {
      std::vector<std::byte> row(row_bytes_of(storage, cols), static_cast<std::byte>(code));
      put_scales(storage, 1, 1, &row);
      const Panels panels = make_panels(packed_bytes(weight_type_of(storage), 1, cols));
      pack_rows(storage, row.data(), 0, 1, cols, panels.get());
      const std::vector<double> weights = dequantize_row(storage, row.data(), cols);
      for (const InputType type : {InputType::kInt16, InputType::kInt8}) {
        for (const int64_t tokens : {1, 5, 17}) {
          Inputs inputs = {.tokens = tokens, .cols = cols, .stride = cols, .type = type};
          std::vector<double> expected(tokens);
          double magnitude = 32 * 128 * 3;
          for (int64_t token = 0; token < tokens; ++token) {
            const float x = token % 2 == 0 ? 3.0f : -3.0f;
            inputs.numbers.insert(inputs.numbers.end(), cols, x);
            for (const double weight : weights) {
              expected[token] += weight * x;
              magnitude = std::max(magnitude, std::abs(weight * x) * static_cast<double>(cols));
            }
          }
          std::vector<float> out(tokens);
          run(table(), inputs,
              {{.weights = {.type = weight_type_of(storage),
                            .rows = 1,
                            .cols = cols,
                            .panels = panels.get()},
                .out = out.data(),
                .out_stride = 1}});
          for (int64_t token = 0; token < tokens; ++token) {
            ASSERT_NEAR(out[token], expected[token], magnitude * tolerance_of(DType::kFloat32))
                << name_of(weight_type_of(storage)) << " " << code << " input " << name_of(type)
                << " token " << token << " of " << tokens;
          }
        }
      }
    }
  }
}

// One number in each unit of inputs, so that a unit's product is one weight's, and its share of the
// output is known without any table's help. Magnitudes differ so much that the order of sums shows.
TEST_P(LinearTest, AddsUnitsOfIntegersOfEightBitsInTheOrderOfColumns) {
  std::mt19937 random(33);
  int differing = 0;  // from the opposite order
  for (const Storage storage : kStorages) {
    const bool has_whole_block =
        storage == Storage::kQ6_K || storage == Storage::kQ3_K || storage == Storage::kIQ4_XS;
    if (!has_whole_block && storage != Storage::kQ8_0 && storage != Storage::kQ4_0) continue;
    const Matrix matrix = random_matrix(storage, 17, whole_blocks(storage, 512), 34);
    for (const int64_t tokens : {1, 2, 8, 20}) {
      Inputs inputs = {.numbers = std::vector<float>(tokens * matrix.cols),
                       .tokens = tokens,
                       .cols = matrix.cols,
                       .stride = matrix.cols,
                       .type = InputType::kInt8};
      std::vector<int64_t> columns(tokens * matrix.cols / 32);  // of the numbers that are not 0
      for (size_t unit = 0; unit < columns.size(); ++unit) {
        const auto in_unit = static_cast<int64_t>(random() % 32);
        columns[unit] = static_cast<int64_t>(unit) * 32 % matrix.cols + in_unit;
        const int exponent = static_cast<int>(random() % 30) - 15;
        const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
        inputs.numbers[static_cast<int64_t>(unit) * 32 + in_unit] =
            sign * std::ldexp(127.0f, exponent);  // becomes ±127, scaled by a power of two
      }
      const std::vector<float> out = run(table(), inputs, matrix);
      const int64_t units = matrix.cols / 32;
      for (int64_t i = 0; i < tokens * 17; ++i) {
        const int64_t token = i / 17, row = i % 17;
        const auto share_of = [&](int64_t unit) {
          const int64_t column = columns[token * units + unit];
          const float x = inputs.token(token)[column];
          const auto product =
              static_cast<float>(matrix.plain[row][column] * std::copysign(127, x));
          return product * (std::abs(x) / 127);
        };
        float sum = 0, opposite = 0;
        for (int64_t unit = 0; unit < units; ++unit) sum += share_of(unit);
        for (int64_t unit = units - 1; unit >= 0; --unit) opposite += share_of(unit);
        ASSERT_EQ(out[i], sum) << name_of(matrix.packed().type) << " token " << token << " of "
                               << tokens << " row " << row;
        differing += sum != opposite;
      }
    }
  }
  EXPECT_GT(differing, 500);
}

TEST_P(LinearTest, KeepsNanOfOneTokenFromTheOthers) {
  for (const Storage storage : kStorages) {
    const Matrix matrix = random_matrix(storage, 17, whole_blocks(storage, 64), 11);
    Inputs inputs = random_inputs(7, matrix.cols, table().native_input, 12);
    const std::vector<float> clean = run(table(), inputs, matrix);
    inputs.numbers[inputs.offset + 3 * inputs.stride + 40] =
        std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> mixed = run(table(), inputs, matrix);
    for (int64_t i = 0; i < 7 * 17; ++i) {
      if (i / 17 == 3) {
        EXPECT_TRUE(std::isnan(mixed[i])) << name_of(matrix.packed().type);
      } else {
        EXPECT_EQ(mixed[i], clean[i]) << name_of(matrix.packed().type);
      }
    }
  }
}

TEST_P(LinearTest, ReadsNothingOutsideItsPanels) {
  for (const Storage storage : kStorages) {
    for (const int64_t cols : some_cols(storage)) {
      const Matrix matrix = random_matrix(storage, 17, cols, 19);
      const int64_t bytes = packed_bytes(weight_type_of(storage), 17, cols);
      constexpr int64_t kMargin = 8192;
      const Panels memory = make_panels(bytes + 2 * kMargin);
      std::memset(memory.get(), 0xff, bytes + 2 * kMargin);  // NaN in every type that has one
      std::memcpy(memory.get() + kMargin, matrix.panels.get(), bytes);
      PackedMatrix moved = matrix.packed();
      moved.panels = memory.get() + kMargin;
      for (const int64_t tokens : {1, 3, 33}) {
        const Inputs inputs = random_inputs(tokens, cols, table().native_input, 20);
        const std::vector<float> expected = run(table(), inputs, matrix);
        std::vector<float> out(expected.size());
        run(table(), inputs, {{.weights = moved, .out = out.data(), .out_stride = 17}});
        ASSERT_TRUE(same_bits(out.data(), expected.data(), static_cast<int64_t>(out.size())))
            << name_of(moved.type) << " cols " << cols << " tokens " << tokens;
      }
    }
  }
}

TEST_P(LinearTest, WritesNothingForNoTokensAndNoParts) {
  const Matrix matrix = random_matrix(Storage::kQ4_1, 16, 32, 13);
  Guarded out(16);
  run(table(), random_inputs(0, 32, InputType::kFloat32, 14),
      {{.weights = matrix.packed(), .out = out.get(), .out_stride = 16}});
  run(table(), random_inputs(3, 32, InputType::kFloat32, 14), std::vector<LinearPart>{});
  EXPECT_TRUE(out.is_intact());
  for (int64_t i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(out[i]));
}

#if defined(__x86_64__)
// Makes the tests of the emulation hold for such a processor.
void expect_the_emulation_to_equal(const Kernels& table, const Kernels& emulated) {
  if (!table.supported()) GTEST_SKIP() << "this processor cannot run " << table.name;
  for (const Storage storage : kStorages) {
    for (const int64_t cols : some_cols(storage)) {
      const Matrix matrix = random_matrix(storage, 33, cols, 21);
      for (const int64_t tokens : {1, 2, 5, 8, 17}) {
        for (const InputType type : kInputTypes) {
          const Inputs inputs = random_inputs(tokens, cols, type, 22);
          const std::vector<float> real = run(table, inputs, matrix);
          const std::vector<float> plain = run(emulated, inputs, matrix);
          ASSERT_TRUE(same_bits(real.data(), plain.data(), tokens * matrix.rows))
              << name_of(matrix.packed().type) << " cols " << cols << " tokens " << tokens
              << " input " << name_of(type);
        }
      }
    }
  }
}

TEST(LinearEmulation, OfDotsEqualsTheInstructionsBitForBit) {
  expect_the_emulation_to_equal(avx512_kernels(), avx512_emulated_kernels());
}

TEST(LinearEmulation, OfTilesEqualsTheInstructionsBitForBit) {
  expect_the_emulation_to_equal(amx_kernels(), amx_emulated_kernels());
}

// 32 weights that are 1.
std::vector<std::byte> row_of_ones(Storage storage) {
  if (storage == Storage::kBF16) {
    std::vector<std::byte> row(64);
    const bf16 one = to_bf16(1.0f);
    for (int i = 0; i < 32; ++i) std::memcpy(row.data() + 2 * i, &one, 2);
    return row;
  }
  const std::byte code{storage == Storage::kQ8_0 ? uint8_t{0x01} : uint8_t{0x99}};
  std::vector<std::byte> row(row_bytes_of(storage, 32), code);
  const f16 scale = to_f16(1.0f);
  std::memcpy(row.data(), &scale, 2);
  return row;
}

// The sum of a group in the order that linear/dot.inl promises, for weights that are 1.
float sum_of_two_chains(const std::vector<float>& inputs, bool by_halves) {
  float chain[2] = {};
  for (int pair = 0; pair < 16; ++pair) {
    float& to = chain[by_halves ? pair / 8 : pair % 2];
    to += inputs[2 * pair + 1];
    to += inputs[2 * pair];
  }
  return chain[0] + chain[1];
}

// A 1 between 2^24 and its negative is lost in the chain that holds 2^24, and kept in the other, so
// each order gives a different sum.
TEST(LinearOrder, OfDotsIsThatOfItsTwoChains) {
  constexpr float kLarge = 0x1p24f;
  for (const Storage storage : {Storage::kBF16, Storage::kQ8_0, Storage::kQ4_0}) {
    const bool by_halves = storage == Storage::kQ8_0;
    const Panels panels = make_panels(packed_bytes(weight_type_of(storage), 1, 32));
    pack_rows(storage, row_of_ones(storage).data(), 0, 1, 32, panels.get());
    const PackedMatrix weights = {
        .type = weight_type_of(storage), .rows = 1, .cols = 32, .panels = panels.get()};
    int differing = 0;  // from the other order
    for (int first = 0; first < 32; ++first) {
      for (int one = first + 1; one < 32; ++one) {
        for (int last = one + 1; last < 32; last += 3) {
          Inputs inputs = {.numbers = std::vector<float>(32),
                           .tokens = 1,
                           .cols = 32,
                           .stride = 32,
                           .type = InputType::kBFloat16};
          inputs.numbers[first] = kLarge;
          inputs.numbers[one] = 1;
          inputs.numbers[last] = -kLarge;
          float out;
          run(avx512_emulated_kernels(), inputs,
              {{.weights = weights, .out = &out, .out_stride = 1}});
          ASSERT_EQ(out, sum_of_two_chains(inputs.numbers, by_halves))
              << name_of(weights.type) << " " << first << " " << one << " " << last;
          differing += out != sum_of_two_chains(inputs.numbers, !by_halves);
        }
      }
    }
    EXPECT_GT(differing, 100) << name_of(weights.type);
  }
}
#endif

SINKSTREAM_TEST_ALL_TABLES(LinearTest);

// The inputs after rounding. The nearest integer is found by trying all.
std::vector<double> counted_inputs(const float* input, int64_t cols, InputType type,
                                   bool meets_codes) {
  std::vector<double> x(input, input + cols);
  if (type == InputType::kBFloat16 || (type == InputType::kInt8 && !meets_codes)) {
    for (int64_t i = 0; i < cols; ++i) x[i] = to_float(to_bf16(input[i]));
  }
  if ((type != InputType::kInt16 && type != InputType::kInt8) || !meets_codes) return x;
  const int most = type == InputType::kInt16 ? 32767 : 127;
  const auto most_as_float = static_cast<float>(most);
  for (int64_t group = 0; group < cols; group += 32) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(input[group + i]));
    const float factor = most_as_float / largest, scale = largest / most_as_float;
    for (int i = 0; i < 32; ++i) {
      const float exact = input[group + i] * factor;
      int nearest = -most;
      for (int whole = nearest; whole <= most; ++whole) {
        const float now = std::abs(exact - static_cast<float>(whole));
        const float best = std::abs(exact - static_cast<float>(nearest));
        if (now < best || (now == best && whole % 2 == 0)) nearest = whole;
      }
      x[group + i] = double{scale} * nearest;
    }
  }
  return x;
}

// The reference itself, compared with sums over weights that were never packed.
TEST(ReferenceLinear, EqualsPlainSums) {
  for (const Storage storage : kStorages) {
    for (const InputType type : kInputTypes) {
      const int64_t cols = whole_blocks(storage, 64);
      const Matrix matrix = random_matrix(storage, 17, cols, 15);
      const Inputs inputs = random_inputs(3, cols, type, 16);
      const std::vector<float> actual = run(reference_kernels(), inputs, matrix);
      for (int64_t token = 0; token < 3; ++token) {
        const std::vector<double> x = counted_inputs(inputs.token(token), cols, type,
                                                     has_integers(format_of(matrix.packed().type)));
        for (int64_t row = 0; row < 17; ++row) {
          double sum = 0, magnitude = 0;
          for (int64_t col = 0; col < cols; ++col) {
            sum += matrix.plain[row][col] * x[col];
            magnitude += std::abs(matrix.plain[row][col] * x[col]);
          }
          if (has_one_order(matrix, type)) {  // sums are floats
            ASSERT_NEAR(actual[token * 17 + row], sum, 1e-6 * magnitude);
          } else {
            ASSERT_EQ(actual[token * 17 + row], static_cast<float>(sum));
          }
        }
      }
    }
  }
}

TEST(WorstError, SeesOneWrongNumberAndAnyNan) {
  const float expected[3] = {1, -2, 4};
  const float right[3] = {1, -2, 4};
  const float wrong[3] = {1, -2.5f, 4};
  const float nan[3] = {1, std::numeric_limits<float>::quiet_NaN(), 4};
  const float infinite[3] = {1, -std::numeric_limits<float>::infinity(), 4};
  EXPECT_EQ(worst_error(right, expected, 3, 4), 0);
  EXPECT_EQ(worst_error(wrong, expected, 3, 4), 0.125);
  EXPECT_EQ(worst_error(nan, expected, 3, 4), std::numeric_limits<double>::infinity());
  EXPECT_EQ(worst_error(nan, nan, 3, 4), std::numeric_limits<double>::infinity());
  EXPECT_EQ(worst_error(infinite, expected, 3, 4), std::numeric_limits<double>::infinity());
  EXPECT_EQ(worst_error(wrong, expected, 1, 4), 0);
}

}  // namespace
}  // namespace sinkstream
