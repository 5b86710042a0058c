#include "kernels/recur.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "lanes.h"

namespace sinkstream {
namespace {

struct Shape {
  int64_t heads, key_heads, key_dim, value_dim;
};
// What a recurrence is: by the delta rule, with keys and queries normalized by the op, key heads in
// turn.
struct Rule {
  bool delta_rule, norms, in_turn;
};
constexpr Rule kRules[] = {
    {true, true, false}, {true, false, true}, {false, false, false}, {false, true, true}};
constexpr Shape kSmall = {4, 2, 12, 5};
constexpr float kEps = 1e-6f;

// What a recurrence reads of one sequence, with keys of length 1 unless the op normalizes them.
struct Text {
  Text(int64_t token_count, const Shape& sizes, const Rule& its_rule, uint32_t seed = 1)
      : tokens(token_count),
        shape(sizes),
        rule(its_rule),
        query(random_floats(tokens * keys(), seed)),
        key(random_floats(tokens * keys(), seed + 1)),
        value(random_floats(tokens * values(), seed + 2)),
        decay(random_floats(tokens * shape.heads, seed + 3)),
        strength(random_floats(tokens * shape.heads, seed + 4)),
        skip(random_floats(shape.heads, 9)) {
    for (float* at = key.data(); !rule.norms && at < key.data() + key.size(); at += shape.key_dim) {
      double squares = 0;
      for (int64_t i = 0; i < shape.key_dim; ++i) squares += double{at[i]} * at[i];
      for (int64_t i = 0; i < shape.key_dim; ++i) at[i] /= static_cast<float>(std::sqrt(squares));
    }
    for (float& g : decay) g = -0.02f * std::abs(g);
    for (float& beta : strength) beta = 1 / (1 + std::exp(-beta));
  }

  RecurArgs args(int64_t first, float* out) const {
    return {.query = query.data() + first * keys(),
            .key = key.data() + first * keys(),
            .key_stride = keys(),
            .value = value.data() + first * values(),
            .value_stride = values(),
            .decay = decay.data() + first * shape.heads,
            .strength = strength.data() + first * shape.heads,
            .skip = rule.delta_rule ? nullptr : skip.data(),
            .out = out,
            .heads = shape.heads,
            .key_heads = shape.key_heads,
            .key_dim = shape.key_dim,
            .value_dim = shape.value_dim,
            .heads_in_turn = rule.in_turn,
            .delta_rule = rule.delta_rule,
            .norm_eps = rule.norms ? kEps : 0};
  }

  int64_t keys() const { return shape.key_heads * shape.key_dim; }
  int64_t values() const { return shape.heads * shape.value_dim; }
  int64_t state() const { return values() * shape.key_dim; }

  int64_t tokens;
  Shape shape;
  Rule rule;
  std::vector<float> query, key, value, decay, strength, skip;
};

using Row = std::vector<double>;
using Matrix = std::vector<Row>;

Row unit(const float* from, int64_t count, double divisor) {
  double squares = kEps;
  for (int64_t i = 0; i < count; ++i) squares += double{from[i]} * from[i];
  Row row(from, from + count);
  for (double& x : row) x /= std::sqrt(squares) * divisor;
  return row;
}

// The definition in double, matrix by matrix, of the tokens from `first` on: [tokens, heads ·
// value_dim]. `state`: of each head before them, float32 numbers or zeros; becomes that after them.
std::vector<Row> expected(const Text& text, int64_t first, std::vector<Matrix>* state) {
  const auto [heads, key_heads, key_dim, value_dim] = text.shape;
  std::vector<Row> all;
  for (int64_t t = first; t < text.tokens; ++t) {
    Row row;
    for (int64_t head = 0; head < heads; ++head) {
      Matrix& s = (*state)[head];
      const int64_t shared = text.rule.in_turn ? head % key_heads : head / (heads / key_heads);
      const float* const given_q = &text.query[(t * key_heads + shared) * key_dim];
      const float* const given_k = &text.key[(t * key_heads + shared) * key_dim];
      Row q(given_q, given_q + key_dim), k(given_k, given_k + key_dim);
      if (text.rule.norms) {
        q = unit(given_q, key_dim, std::sqrt(static_cast<double>(key_dim)));
        k = unit(given_k, key_dim, 1);
      }
      const float* const v = &text.value[(t * heads + head) * value_dim];
      for (auto& of_key : s) {
        for (double& number : of_key) number *= std::exp(double{text.decay[t * heads + head]});
      }
      Row u(v, v + value_dim);
      for (int64_t j = 0; j < value_dim; ++j) {
        for (int64_t i = 0; text.rule.delta_rule && i < key_dim; ++i) u[j] -= k[i] * s[i][j];
        u[j] *= text.strength[t * heads + head];
      }
      for (int64_t i = 0; i < key_dim; ++i) {
        for (int64_t j = 0; j < value_dim; ++j) s[i][j] += k[i] * u[j];
      }
      for (int64_t j = 0; j < value_dim; ++j) {
        double o = text.rule.delta_rule ? 0 : double{text.skip[head]} * v[j];
        for (int64_t i = 0; i < key_dim; ++i) o += q[i] * s[i][j];
        row.push_back(o);
      }
    }
    all.push_back(std::move(row));
  }
  return all;
}

std::vector<Matrix> matrices_of(const Shape& shape, const std::vector<float>& state) {
  std::vector<Matrix> all;
  for (int64_t head = 0; head < shape.heads; ++head) {
    Matrix& matrix = all.emplace_back();
    for (int64_t i = 0; i < shape.key_dim; ++i) {
      const auto at = state.begin() + (head * shape.key_dim + i) * shape.value_dim;
      matrix.emplace_back(at, at + shape.value_dim);
    }
  }
  return all;
}

double worst(const std::vector<float>& found, const std::vector<Row>& wanted, int64_t first) {
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

class RecurTest : public TableTest<&Kernels::recur> {
 protected:
  // The outputs of a text that is read in spans of at most `chunk` tokens; `state` becomes that
  // after the first `until` of them, a multiple of `chunk`, and at last that after all.
  std::vector<float> read(const Text& text, int64_t chunk, ThreadPool* pool,
                          std::vector<float>* state, int64_t until = -1,
                          std::vector<float>* in_between = nullptr) {
    std::vector<float> found;
    for (int64_t t = 0; t < text.tokens; t += chunk) {
      const int64_t count = std::min(chunk, text.tokens - t);
      Guarded out(count * text.values(), 3), after(text.state(), 5);
      RecurArgs args = text.args(t, out.get());
      const StateSpan span = {0, count, state->data(), after.get()};
      args.spans = &span;
      args.span_count = 1;
      table().recur(args, {pool});
      EXPECT_TRUE(out.is_intact() && after.is_intact());
      found.insert(found.end(), out.get(), out.get() + out.count());
      state->assign(after.get(), after.get() + text.state());
      if (t + count == until) *in_between = *state;
    }
    return found;
  }
};

TEST_P(RecurTest, IsItsDefinitionAndDoesNotDrift) {
  ThreadPool pool(2);
  for (const Rule& rule : kRules) {
    const Text text(3000, kSmall, rule);
    std::vector<float> state(text.state()), at_2000;
    const std::vector<float> found = read(text, 500, &pool, &state, 2000, &at_2000);
    std::vector<Matrix> exact = matrices_of(kSmall, std::vector<float>(text.state()));
    EXPECT_LE(worst(found, expected(text, 0, &exact), 0), 1e-5);
    // From here on the definition has the same past.
    std::vector<Matrix> restarted = matrices_of(kSmall, at_2000);
    EXPECT_LE(worst(found, expected(text, 2000, &restarted), 2000), 1e-5);
  }
}

TEST_P(RecurTest, IsItsDefinitionForAllSizes) {
  ThreadPool pool(2);
  for (const auto& [i, key_dim] : indexed({1, 3, 16, 31, 33, 128, int(kMostKeyDim)})) {
    for (const auto& [j, value_dim] : indexed({1, 7, 8, 16, 17, 32, 63, 65, 128})) {
      for (const auto& [r, rule] :
           indexed(std::vector<Rule>(std::begin(kRules), std::end(kRules)))) {
        if (!runs_case(3, {i, j, r})) continue;
        const Shape shape = {6, 3, key_dim, value_dim};
        const Text text(9, shape, rule);
        std::vector<float> state = random_floats(text.state(), 30);
        std::vector<Matrix> exact = matrices_of(shape, state);
        const std::vector<float> found = read(text, 4, &pool, &state);
        EXPECT_LE(worst(found, expected(text, 0, &exact), 0), 1e-5)
            << key_dim << " x " << value_dim << ", rule " << r;
      }
    }
  }
}

TEST_P(RecurTest, NeitherSpansNorThreadsChangeABit) {  // tsan
  ThreadPool one(1), three(3);
  for (const Rule& rule : kRules) {
    const Text text(150, {4, 2, 24, 37}, rule);
    std::vector<float> state(text.state());
    const std::vector<float> whole = read(text, 150, &one, &state);
    for (const int64_t chunk : {1, 7, 64}) {
      std::vector<float> other(text.state());
      const std::vector<float> found = read(text, chunk, &three, &other);
      EXPECT_TRUE(same_bits(found.data(), whole.data(), std::ssize(whole))) << chunk;
      EXPECT_TRUE(same_bits(state.data(), other.data(), text.state())) << "spans of " << chunk;
    }
  }
}

// Each sequence has its own state, and rows of others are not read: NaN in them does not spread.
TEST_P(RecurTest, ASequenceHasTheSameBitsAloneAndAmongOthers) {  // tsan
  ThreadPool threads(3), one(1);
  for (const Rule& rule : kRules) {
    const Text text(20, kSmall, rule);
    const std::vector<int64_t> counts = {1, 5, 2, 9, 3};
    std::vector<std::vector<float>> before, after;
    for (size_t i = 0; i < counts.size(); ++i) {
      before.push_back(random_floats(text.state(), 20 + static_cast<uint32_t>(i)));
      after.emplace_back(text.state(), NAN);
    }
    before[2].assign(text.state(), NAN);
    Guarded together(text.tokens * text.values());
    std::vector<StateSpan> spans;
    for (size_t i = 0, row = 0; i < counts.size(); row += static_cast<size_t>(counts[i++])) {
      spans.push_back({static_cast<int64_t>(row), counts[i], before[i].data(), after[i].data()});
    }
    RecurArgs args = text.args(0, together.get());
    args.spans = spans.data();
    args.span_count = std::ssize(spans);
    table().recur(args, {&threads});
    for (size_t i = 0; i < counts.size(); ++i) {
      Guarded alone(counts[i] * text.values());
      std::vector<float> state(text.state(), NAN);
      const StateSpan only = {0, counts[i], before[i].data(), state.data()};
      RecurArgs its_args = text.args(spans[i].row, alone.get());
      its_args.spans = &only;
      its_args.span_count = 1;
      table().recur(its_args, {&one});
      const float* const its_rows = together.get() + spans[i].row * text.values();
      EXPECT_TRUE(same_bits(its_rows, alone.get(), alone.count())) << i;
      EXPECT_TRUE(same_bits(after[i].data(), state.data(), text.state())) << i;
      EXPECT_EQ(std::isnan(alone[0]), i == 2) << i;
    }
  }
}

SINKSTREAM_TEST_ALL_TABLES(RecurTest);

}  // namespace
}  // namespace sinkstream
