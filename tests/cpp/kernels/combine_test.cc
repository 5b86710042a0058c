#include "kernels/combine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "kernels/tolerance.h"

namespace sinkstream {
namespace {

// Outputs of experts for some rows, in an order that a router could have caused.
struct Outputs {
  Outputs(int64_t row_count, int64_t chosen_count, int64_t dim_count)
      : rows(row_count), chosen(chosen_count), dim(dim_count) {
    for (int64_t i = 0; i < rows * chosen; ++i) {
      positions.push_back(static_cast<int32_t>((i * 7 + 3) % (rows * chosen)));
    }
  }
  CombineArgs args(Guarded* out) const {
    return {.outputs = outputs.data(),
            .positions = positions.data(),
            .weights = weights.data(),
            .chosen = chosen,
            .shared = shared.data(),
            .shared_gate = gates.data(),
            .out = out->get(),
            .accumulate = true,
            .rows = rows,
            .dim = dim};
  }
  // No sum of terms is larger.
  double largest() const {
    const auto most = [](const std::vector<float>& numbers) {
      double found = 0;
      for (const float number : numbers) found = std::max(found, std::abs(double{number}));
      return found;
    };
    return chosen * most(weights) * most(outputs) + most(shared) + most(before);
  }
  int64_t rows, chosen, dim;
  std::vector<int32_t> positions;  // of 5 rows with 3 choices, and of one
  std::vector<float> outputs = random_floats(rows * chosen * dim, 1);
  std::vector<float> weights = random_floats(rows * chosen, 2);
  std::vector<float> shared = random_floats(rows * dim, 3);
  std::vector<float> gates = random_floats(rows, 4);
  std::vector<float> before = random_floats(rows * dim, 5);
};

Guarded guarded(const std::vector<float>& numbers) {
  Guarded copy(static_cast<int64_t>(numbers.size()), 5);
  std::copy(numbers.begin(), numbers.end(), copy.get());
  return copy;
}

class CombineTest : public TableTest<&Kernels::combine> {};

TEST_P(CombineTest, MatchesTheReferenceWithAndWithoutEachTerm) {
  ThreadPool pool(2);
  for (const int64_t dim : {1, 3, 8, 15, 16, 17, 33, 1000}) {
    const Outputs given(5, 3, dim);
    for (int terms = 0; terms < 8; ++terms) {
      Guarded out = guarded(given.before), expected = guarded(given.before);
      CombineArgs args = given.args(&out);
      if (terms & 1) args.shared = nullptr;
      if (terms & 2) args.shared_gate = nullptr;
      if (terms & 4) args.accumulate = false;
      table().combine(args, {&pool});
      EXPECT_TRUE(out.is_intact());
      args.out = expected.get();
      reference_kernels().combine(args, {&pool});
      // Every one of at most five sums is rounded by half a unit in the last place.
      for (int64_t i = 0; i < out.count(); ++i) {
        EXPECT_NEAR(out[i], expected[i], 5 * 0x1p-24 * given.largest()) << "terms " << terms;
      }
    }
  }
}

TEST_P(CombineTest, GivesARowTheSameBitsAloneAndAmongOthers) {  // tsan
  constexpr int64_t kDim = 517;
  const Outputs given(5, 3, kDim);
  ThreadPool threads(3), one(1);
  Guarded together = guarded(given.before);
  table().combine(given.args(&together), {&threads});
  for (int64_t row = 0; row < 5; ++row) {
    const auto first = given.before.begin() + row * kDim;
    Guarded alone = guarded({first, first + kDim});
    CombineArgs args = given.args(&alone);
    args.positions += row * args.chosen;
    args.weights += row * args.chosen;
    args.shared += row * kDim;
    args.shared_gate += row;
    args.rows = 1;
    table().combine(args, {&one});
    EXPECT_TRUE(same_bits(together.get() + row * kDim, alone.get(), kDim)) << "row " << row;
  }
}

SINKSTREAM_TEST_ALL_TABLES(CombineTest);

}  // namespace
}  // namespace sinkstream
