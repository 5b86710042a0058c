// Shared by the tests of attention: streams, the definition, and comparison with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/errors.h"
#include "kernels/tables.h"
#include "kernels/test_stream.h"
#include "kernels/tolerance.h"

namespace sinkstream {

inline StreamSpec make_spec(int64_t sinks, int64_t window, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, DType type) {
  return {.window = {.sinks = sinks, .window = window},
          .heads = heads,
          .shape = {.kv_heads = kv_heads, .head_dim = head_dim, .type = type},
          .rotary_dim = head_dim,
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))};
}

inline std::string text_of(const StreamSpec& spec) {
  return cat("S ", spec.window.sinks, " W ", spec.window.window, " heads ", spec.heads, "/",
             spec.shape.kv_heads, " of ", spec.shape.head_dim, " ", name_of(spec.shape.type));
}

inline double largest_of(const std::vector<float>& numbers) {
  double largest = 0;
  for (const float x : numbers) largest = std::max(largest, std::abs(double{x}));
  return largest;
}

// The output of token t by definition: every live key is rotated to its position in the cache, in
// double, with no page, no ring and no rounding. [heads, head_dim]
inline std::vector<double> literal_row(const StreamSpec& spec, int64_t t) {
  const Window& window = spec.window;
  const int64_t head_dim = spec.shape.head_dim;
  const std::vector<double> frequencies = spec.frequencies();
  const auto rotated = [&](const std::vector<float>& part, int64_t head, int64_t position) {
    std::vector<double> x(part.begin() + head * head_dim, part.begin() + (head + 1) * head_dim);
    const auto pairs = static_cast<int64_t>(frequencies.size());
    for (int64_t d = 0; d < pairs; ++d) {
      const bool half = spec.pairing == Pairing::kHalf;
      double& a = x[half ? d : 2 * d];
      double& b = x[half ? d + pairs : 2 * d + 1];
      const double angle = static_cast<double>(position) * frequencies[d];
      const double cos = std::cos(angle) * spec.attention_factor;
      const double sin = std::sin(angle) * spec.attention_factor;
      const double rotated_a = a * cos - b * sin;
      b = b * cos + a * sin;
      a = rotated_a;
    }
    return x;
  };

  std::vector<int64_t> live;  // the index in this list is the position
  for (int64_t j = 0; j < window.sinks && j <= t; ++j) live.push_back(j);
  const int64_t oldest = std::max({window.sinks, window.begin, t - window.window + 1});
  for (int64_t i = oldest; i <= t; ++i) live.push_back(i);
  const auto own_position = static_cast<int64_t>(live.size()) - 1;

  std::vector<std::vector<float>> keys, values;
  for (const int64_t i : live) {
    keys.push_back(random_part(spec, Part::kKey, i));
    values.push_back(random_part(spec, Part::kValue, i));
  }
  const std::vector<float> queries = random_part(spec, Part::kQuery, t);
  std::vector<double> out(spec.heads * head_dim);
  for (int64_t h = 0; h < spec.heads; ++h) {
    const int64_t kv_head = h / (spec.heads / spec.shape.kv_heads);
    const std::vector<double> query = rotated(queries, h, own_position);
    std::vector<double> weights;
    double total = 0;
    for (int64_t position = 0; position <= own_position; ++position) {
      const std::vector<double> key = rotated(keys[position], kv_head, position);
      double score = 0;
      for (int64_t d = 0; d < head_dim; ++d) score += query[d] * key[d];
      score *= spec.scale;
      if (spec.soft_cap > 0) score = spec.soft_cap * std::tanh(score / spec.soft_cap);
      if (!spec.slopes.empty()) {
        score -= double{spec.slopes[h]} * static_cast<double>(own_position - position);
      }
      weights.push_back(std::exp(score));
      total += weights.back();
    }
    if (!spec.sink_logits.empty()) total += std::exp(double{spec.sink_logits[h]});
    for (size_t k = 0; k < live.size(); ++k) {
      for (int64_t d = 0; d < head_dim; ++d) {
        out[h * head_dim + d] += weights[k] / total * values[k][kv_head * head_dim + d];
      }
    }
  }
  return out;
}

// Feeds the tokens [begin, end) in pieces of at most `cut`, and returns all outputs.
inline std::vector<float> read_all(TestStream* stream, const Kernels& kernels, ThreadPool* pool,
                                   int64_t begin, int64_t end, int64_t cut) {
  std::vector<float> all;
  for (int64_t t = begin, count; t < end; t += count) {
    count = stream->spec().window.piece(t, std::min(cut, end - t));
    stream->append(t, count, pool);
    const std::vector<float> out = AttentionCall({{stream, t, count}}, pool).run(kernels.attention);
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

class AttentionTest : public TableTest<&Kernels::attention> {
 protected:
  // Runs the call and compares every `step`-th row with the reference on the same pages.
  void expect_reference(const AttentionCall& call, const std::vector<float>& out, int64_t step,
                        const std::string& what) {
    for (int64_t row = 0; row < call.rows(); row += step) {
      const std::vector<float> expected = call.expected(row);
      EXPECT_LE(share_of_tolerance(out.data() + row * call.row_size(), expected.data(),
                                   call.row_size(), largest_of(expected), DType::kFloat32),
                1)
          << what << " row " << row;
    }
  }

  // Feeds a stream alternately one token, five, and as many as fit; compares all outputs.
  void expect_reference_until(int64_t end, const StreamSpec& spec, ThreadPool* pool) {
    TestStream stream(spec, table());
    for (int64_t t = 0, round = 0, count; t < end; t += count, ++round) {
      constexpr int64_t kCuts[] = {1, 5, 64};
      count = spec.window.piece(t, std::min(kCuts[round % 3], end - t));
      stream.append(t, count, pool);
      AttentionCall call({{&stream, t, count}}, pool);
      expect_reference(call, call.run(table().attention), 1, cat(text_of(spec), " from ", t));
    }
  }

  // Compares a row with its literal definition, as closely as the cache's types allow.
  void expect_literal(const StreamSpec& spec, int64_t t, const float* out) {
    const std::vector<double> literal = literal_row(spec, t);
    const std::vector<float> expected(literal.begin(), literal.end());
    const DType window = spec.shape.type, sinks = spec.sink_shape().type;
    const DType coarser = tolerance_of(window) < tolerance_of(sinks) ? sinks : window;
    EXPECT_LE(share_of_tolerance(out, expected.data(), static_cast<int64_t>(expected.size()),
                                 largest_of(expected), coarser),
              1)
        << text_of(spec) << " token " << t;
  }
};

}  // namespace sinkstream
