#include "kernels/recur.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/reference/reference.h"

namespace sinkstream {
namespace {

// What a recurrence reads of one sequence, with keys of length 1, as models have them.
struct Text {
  Text(int64_t token_count, bool with_delta_rule, uint32_t seed = 1)
      : tokens(token_count),
        delta_rule(with_delta_rule),
        query(random_floats(tokens * kKeyHeads * kKeyDim, seed)),
        key(random_floats(tokens * kKeyHeads * kKeyDim, seed + 1)),
        value(random_floats(tokens * kHeads * kValueDim, seed + 2)),
        decay(random_floats(tokens * kHeads, seed + 3)),
        strength(random_floats(tokens * kHeads, seed + 4)),
        skip(random_floats(kHeads, 9)) {
    for (float* at = key.data(); at < key.data() + key.size(); at += kKeyDim) {
      double squares = 0;
      for (int64_t i = 0; i < kKeyDim; ++i) squares += double{at[i]} * at[i];
      for (int64_t i = 0; i < kKeyDim; ++i) at[i] /= static_cast<float>(std::sqrt(squares));
    }
    for (float& g : decay) g = -0.02f * std::abs(g);
    for (float& beta : strength) beta = 1 / (1 + std::exp(-beta));
  }

  RecurArgs args(int64_t first, float* out) const {
    return {.query = query.data() + first * kKeyHeads * kKeyDim,
            .key = key.data() + first * kKeyHeads * kKeyDim,
            .key_stride = kKeyHeads * kKeyDim,
            .value = value.data() + first * kHeads * kValueDim,
            .value_stride = kHeads * kValueDim,
            .decay = decay.data() + first * kHeads,
            .strength = strength.data() + first * kHeads,
            .skip = delta_rule ? nullptr : skip.data(),
            .out = out,
            .heads = kHeads,
            .key_heads = kKeyHeads,
            .key_dim = kKeyDim,
            .value_dim = kValueDim,
            .delta_rule = delta_rule};
  }

  static constexpr int64_t kHeads = 4, kKeyHeads = 2, kKeyDim = 12, kValueDim = 5;
  static constexpr int64_t kState = kHeads * kKeyDim * kValueDim;
  int64_t tokens;
  bool delta_rule;
  std::vector<float> query, key, value, decay, strength, skip;
};

using Matrix = std::vector<std::vector<double>>;

// The definition in double, matrix by matrix, of the tokens from `first` on: [tokens, heads ·
// value_dim]. `state`: of each head before them, float32 numbers or zeros; becomes that after them.
std::vector<std::vector<double>> expected(const Text& text, int64_t first,
                                          std::vector<Matrix>* state) {
  std::vector<std::vector<double>> all;
  for (int64_t t = first; t < text.tokens; ++t) {
    std::vector<double> row;
    for (int64_t head = 0; head < Text::kHeads; ++head) {
      Matrix& s = (*state)[head];
      const int64_t shared = head / (Text::kHeads / Text::kKeyHeads);
      const float* const q = &text.query[(t * Text::kKeyHeads + shared) * Text::kKeyDim];
      const float* const k = &text.key[(t * Text::kKeyHeads + shared) * Text::kKeyDim];
      const float* const v = &text.value[(t * Text::kHeads + head) * Text::kValueDim];
      for (auto& of_key : s) {
        for (double& number : of_key)
          number *= std::exp(double{text.decay[t * Text::kHeads + head]});
      }
      std::vector<double> u(v, v + Text::kValueDim);
      for (int64_t j = 0; j < Text::kValueDim; ++j) {
        for (int64_t i = 0; text.delta_rule && i < Text::kKeyDim; ++i) u[j] -= k[i] * s[i][j];
        u[j] *= text.strength[t * Text::kHeads + head];
      }
      for (int64_t i = 0; i < Text::kKeyDim; ++i) {
        for (int64_t j = 0; j < Text::kValueDim; ++j) s[i][j] += k[i] * u[j];
      }
      for (int64_t j = 0; j < Text::kValueDim; ++j) {
        double o = text.delta_rule ? 0 : double{text.skip[head]} * v[j];
        for (int64_t i = 0; i < Text::kKeyDim; ++i) o += q[i] * s[i][j];
        row.push_back(o);
      }
    }
    all.push_back(std::move(row));
  }
  return all;
}

std::vector<Matrix> matrices_of(const std::vector<float>& state) {
  std::vector<Matrix> all;
  for (int64_t head = 0; head < Text::kHeads; ++head) {
    Matrix& matrix = all.emplace_back();
    for (int64_t i = 0; i < Text::kKeyDim; ++i) {
      const auto at = state.begin() + (head * Text::kKeyDim + i) * Text::kValueDim;
      matrix.emplace_back(at, at + Text::kValueDim);
    }
  }
  return all;
}

// The outputs of a text that is read in spans of at most `chunk` tokens; `state` becomes that after
// the first `until` of them, a multiple of `chunk`, and at last that after all.
std::vector<float> read(const Text& text, int64_t chunk, ThreadPool* pool,
                        std::vector<float>* state, int64_t until = -1,
                        std::vector<float>* in_between = nullptr) {
  std::vector<float> found;
  for (int64_t t = 0; t < text.tokens; t += chunk) {
    const int64_t count = std::min(chunk, text.tokens - t);
    Guarded out(count * Text::kHeads * Text::kValueDim, 3), after(Text::kState, 5);
    RecurArgs args = text.args(t, out.get());
    const StateSpan span = {0, count, state->data(), after.get()};
    args.spans = &span;
    args.span_count = 1;
    reference::recur(args, {pool});
    EXPECT_TRUE(out.is_intact() && after.is_intact());
    found.insert(found.end(), out.get(), out.get() + out.count());
    state->assign(after.get(), after.get() + Text::kState);
    if (t + count == until) *in_between = *state;
  }
  return found;
}

double worst(const std::vector<float>& found, const std::vector<std::vector<double>>& wanted,
             int64_t first) {
  double largest = 0, error = 0;
  const auto width = static_cast<int64_t>(wanted.front().size());
  for (int64_t t = 0; t < std::ssize(wanted); ++t) {
    for (int64_t j = 0; j < width; ++j) {
      largest = std::max(largest, std::abs(wanted[t][j]));
      error = std::max(error, std::abs(found[(first + t) * width + j] - wanted[t][j]));
    }
  }
  return error / largest;
}

class RecurTest : public testing::TestWithParam<bool> {};

TEST_P(RecurTest, IsItsDefinitionAndDoesNotDrift) {
  ThreadPool pool(2);
  const Text text(3000, GetParam());
  std::vector<float> state(Text::kState), at_2000;
  const std::vector<float> found = read(text, 500, &pool, &state, 2000, &at_2000);
  std::vector<Matrix> exact = matrices_of(std::vector<float>(Text::kState));
  EXPECT_LE(worst(found, expected(text, 0, &exact), 0), 1e-5);
  // From here on the definition has the same past.
  std::vector<Matrix> restarted = matrices_of(at_2000);
  EXPECT_LE(worst(found, expected(text, 2000, &restarted), 2000), 1e-5);
}

TEST_P(RecurTest, NeitherSpansNorThreadsChangeABit) {
  ThreadPool one(1), three(3);
  const Text text(150, GetParam());
  std::vector<float> state(Text::kState);
  const std::vector<float> whole = read(text, 150, &one, &state);
  for (const int64_t chunk : {1, 7, 64}) {
    std::vector<float> other(Text::kState);
    const std::vector<float> found = read(text, chunk, &three, &other);
    EXPECT_TRUE(same_bits(found.data(), whole.data(), std::ssize(whole))) << "spans of " << chunk;
    EXPECT_TRUE(same_bits(state.data(), other.data(), Text::kState)) << "spans of " << chunk;
  }
}

TEST_P(RecurTest, ASequenceHasTheSameBitsAloneAndAmongOthers) {
  ThreadPool threads(3), one(1);
  const Text text(20, GetParam());
  const std::vector<int64_t> counts = {1, 5, 2, 9, 3};
  std::vector<std::vector<float>> before, after;
  for (size_t i = 0; i < counts.size(); ++i) {
    before.push_back(random_floats(Text::kState, 20 + static_cast<uint32_t>(i)));
    after.emplace_back(Text::kState, NAN);
  }
  before[2].assign(Text::kState, NAN);
  constexpr int64_t kWidth = Text::kHeads * Text::kValueDim;
  Guarded together(text.tokens * kWidth);
  std::vector<StateSpan> spans;
  for (size_t i = 0, row = 0; i < counts.size(); row += static_cast<size_t>(counts[i++])) {
    spans.push_back({static_cast<int64_t>(row), counts[i], before[i].data(), after[i].data()});
  }
  RecurArgs args = text.args(0, together.get());
  args.spans = spans.data();
  args.span_count = std::ssize(spans);
  reference::recur(args, {&threads});
  for (size_t i = 0; i < counts.size(); ++i) {
    Guarded alone(counts[i] * kWidth);
    std::vector<float> state(Text::kState, NAN);
    const StateSpan only = {0, counts[i], before[i].data(), state.data()};
    RecurArgs its_args = text.args(spans[i].row, alone.get());
    its_args.spans = &only;
    its_args.span_count = 1;
    reference::recur(its_args, {&one});
    EXPECT_TRUE(same_bits(together.get() + spans[i].row * kWidth, alone.get(), alone.count())) << i;
    EXPECT_TRUE(same_bits(after[i].data(), state.data(), Text::kState)) << i;
    EXPECT_EQ(std::isnan(alone[0]), i == 2) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, RecurTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "DeltaRule" : "Sum"; });

}  // namespace
}  // namespace sinkstream
