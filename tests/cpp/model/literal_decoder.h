// The definition of a stream through a complete decoder, in double: the live tokens are a plain
// list, and every query rotates every key that it sees to the key's rank in that list.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/table.h"
#include "model/random_weights.h"

namespace sinkstream {

// The tokens that the next query sees, in ascending order: sinks, then the most recent.
class LiveTokens {
 public:
  LiveTokens(int64_t sinks, int64_t window) : sinks_(sinks), window_(window) {}

  // Adds the next token, t, and returns what its query sees. Its rank in the list is its position.
  std::vector<int64_t> add(int64_t t) {
    live_.push_back(t);
    trim(window_);
    return live_;
  }

  // As in StreamingLLM's code, whose cache keeps the sinks and R = W − 1 tokens between forwards.
  void evict_for_space(int64_t count) {
    const int64_t recent = window_ - 1;
    trim(recent);
    if (size() + count > sinks_ + recent) trim(recent - count);
  }
  void evict_range(int64_t begin, int64_t end) {
    trim(window_ - 1);
    live_.erase(live_.begin() + begin, live_.begin() + end);
  }
  // Loses what `other`, which was cut, has lost.
  void keep_only(const LiveTokens& other) {
    trim(window_ - 1);
    std::erase_if(live_, [&](int64_t token) {
      return !std::binary_search(other.live_.begin(), other.live_.end(), token);
    });
  }

 private:
  int64_t size() const { return static_cast<int64_t>(live_.size()); }
  void trim(int64_t recent) {
    while (size() > sinks_ + recent) live_.erase(live_.begin() + sinks_);
  }

  int64_t sinks_, window_;
  std::vector<int64_t> live_;
};

class LiteralDecoder {
 public:
  using Row = std::vector<double>;

  explicit LiteralDecoder(const RandomWeights& model) : spec_(model.spec), model_(model) {}

  // The tokens that each query sees, ascending.
  using Seen = std::vector<std::vector<int64_t>>;

  // A router's logits, and the experts that it chose, for one token.
  struct Routed {
    std::vector<float> logits;
    std::vector<int32_t> ids;
  };
  // Of the last call of `logits`: [layers][tokens]; of layers without experts none.
  const std::vector<std::vector<Routed>>& routed() const { return routed_; }

  // Logits [tokens][vocab]; the query of tokens[t] sees in a layer the tokens that `seen[layer][t]`
  // lists.
  std::vector<Row> logits(const std::vector<int32_t>& tokens,
                          const std::vector<const Seen*>& seen) const {
    std::vector<Row> hidden;
    routed_.clear();
    for (const int32_t token : tokens) {
      const float* row = at("embedding").data() + token * spec_.hidden_size;
      hidden.push_back(times(spec_.embedding_scale, Row(row, row + spec_.hidden_size)));
    }
    for (int64_t layer = 0; layer < spec_.layers(); ++layer) {
      const Layer its_layer = {spec_.block(layer), "layers." + std::to_string(layer) + "."};
      routed_.emplace_back();
      run(its_layer, *seen[static_cast<size_t>(layer)], &hidden);
    }
    std::vector<Row> found;
    for (const Row& x : hidden) {
      const Row normed = norm(spec_.final_norm, "final_norm", x);
      Row y = linear(spec_.tie_embeddings ? "embedding" : "output",
                     spec_.logit_bias ? "output_bias" : "", normed);
      for (double& logit : y) {
        logit *= spec_.logit_scale;
        const double cap = spec_.logit_soft_cap;
        if (cap > 0) logit = cap * std::tanh(logit / cap);
      }
      found.push_back(std::move(y));
    }
    return found;
  }

 private:
  struct Layer {
    const BlockSpec& block;
    std::string at;  // before the names of its weights
  };

  const std::vector<float>& at(const std::string& name) const { return model_.weights.at(name); }

  static void add(const Row& x, Row* sum) {
    for (size_t i = 0; i < x.size(); ++i) (*sum)[i] += x[i];
  }
  static Row times(double factor, Row x) {
    for (double& number : x) number *= factor;
    return x;
  }

  // `bias`: "" for none.
  Row linear(const std::string& weight, const std::string& bias, const Row& x) const {
    const std::vector<float>& numbers = at(weight);
    Row y(numbers.size() / x.size());
    for (size_t row = 0; row < y.size(); ++row) {
      if (!bias.empty()) y[row] = at(bias)[row];
      for (size_t i = 0; i < x.size(); ++i) y[row] += numbers[row * x.size() + i] * x[i];
    }
    return y;
  }
  Row linear(const Layer& layer, const std::string& name, bool has_bias, const Row& x) const {
    return linear(layer.at + name, has_bias ? layer.at + name + "_bias" : "", x);
  }

  // Normalizes each piece of x that is as long as the weight by itself.
  Row norm(const NormSpec& spec, const std::string& weight, Row x) const {
    const std::vector<float>& scale = at(weight);
    const auto size = static_cast<double>(scale.size());
    for (size_t begin = 0; begin < x.size(); begin += scale.size()) {
      double mean = 0, squares = 0;
      if (spec.kind == NormKind::kLayer) {
        for (size_t i = 0; i < scale.size(); ++i) mean += x[begin + i] / size;
      }
      for (size_t i = 0; i < scale.size(); ++i) {
        x[begin + i] -= mean;
        squares += x[begin + i] * x[begin + i];
      }
      const double root = std::sqrt(squares / size + spec.eps);
      for (size_t i = 0; i < scale.size(); ++i) {
        x[begin + i] *= scale[i] / root;
        if (spec.bias) x[begin + i] += at(weight + "_bias")[i];
      }
    }
    return x;
  }
  Row norm_if(bool has_norm, const Layer& layer, const char* name, const Row& x) const {
    return has_norm ? norm(layer.block.norm, layer.at + name, x) : x;
  }

  // What rotates a pair; every head and query at a position have the same.
  struct Turn {
    double cos, sin;
  };
  static std::vector<Turn> turns_at(const RopeSpec& rope, int64_t position) {
    std::vector<Turn> turns;
    for (const double frequency : rope.inverse_frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      turns.push_back(
          {std::cos(angle) * rope.attention_factor, std::sin(angle) * rope.attention_factor});
    }
    return turns;
  }

  // One head of `heads`, rotated.
  static Row rotated(const AttentionSpec& attention, const Row& heads, int64_t head,
                     const std::vector<Turn>& turns) {
    const auto begin = heads.begin() + head * attention.head_dim;
    Row x(begin, begin + attention.head_dim);
    const auto pairs = static_cast<int64_t>(turns.size());
    for (int64_t d = 0; d < pairs; ++d) {
      const bool half = attention.rope.pairing == Pairing::kHalf;
      double& a = x[half ? d : 2 * d];
      double& b = x[half ? d + pairs : 2 * d + 1];
      const auto [cos, sin] = turns[static_cast<size_t>(d)];
      const double rotated_a = a * cos - b * sin;
      b = b * cos + a * sin;
      a = rotated_a;
    }
    return x;
  }

  // Note [Blocks] of model/decoder_spec.h.
  void run(const Layer& layer, const Seen& seen, std::vector<Row>* hidden) const {
    const BlockSpec& block = layer.block;
    std::vector<Row> normed;
    for (const Row& x : *hidden) {
      normed.push_back(norm_if(block.attention_norm, layer, "attention_norm", x));
    }
    const std::vector<Row> read =
        block.recurrent() == nullptr ? attend(layer, seen, normed) : convolve(layer, normed);
    for (size_t t = 0; t < hidden->size(); ++t) {
      Row* const x = &(*hidden)[t];
      const Row before = *x;
      const Row y = norm_if(block.attention_post_norm, layer, "attention_post_norm", read[t]);
      add(times(block.residual_scale, y), x);
      const Row& input = block.parallel ? before : *x;
      const Row mlp_input = block.parallel && !block.mlp_norm
                                ? normed[t]
                                : norm_if(block.mlp_norm, layer, "mlp_norm", input);
      const Row z =
          norm_if(block.mlp_post_norm, layer, "mlp_post_norm", transform(layer, mlp_input));
      add(times(block.residual_scale, z), x);
    }
  }

  // Of all tokens, whether a query still sees them or not. Before the first one there are zeros.
  std::vector<Row> convolve(const Layer& layer, const std::vector<Row>& input) const {
    const RecurrentSpec& spec = *layer.block.recurrent();
    const size_t width = input.front().size();
    const auto size = static_cast<size_t>(spec.conv_size);
    const std::vector<float>& taps = at(layer.at + "conv");
    std::vector<Row> gates, gated;
    for (const Row& x : input) {
      const Row y = linear(layer, "conv_in", spec.bias, x);
      gates.emplace_back(y.begin() + width, y.begin() + 2 * width);
      gated.emplace_back(width);
      for (size_t c = 0; c < width; ++c) gated.back()[c] = y[c] * y[2 * width + c];
    }
    std::vector<Row> found;
    for (size_t t = 0; t < input.size(); ++t) {
      Row sum(width);
      for (size_t c = 0; c < width; ++c) {
        if (spec.conv_bias) sum[c] = at(layer.at + "conv_bias")[c];
        for (size_t back = 0; back < size && back <= t; ++back) {
          sum[c] += taps[c * size + size - 1 - back] * gated[t - back][c];
        }
        sum[c] *= gates[t][c];
      }
      found.push_back(linear(layer, "conv_out", spec.bias, sum));
    }
    return found;
  }

  Row head_rows(const Layer& layer, const char* name, const Row& x) const {
    const AttentionSpec& attention = layer.block.attention();
    Row y = linear(layer, name, attention.qkv_bias, x);
    if (attention.clip > 0) {
      for (double& number : y) {
        number = std::clamp<double>(number, -attention.clip, attention.clip);
      }
    }
    return y;
  }

  std::vector<Row> attend(const Layer& layer, const Seen& seen,
                          const std::vector<Row>& input) const {
    const AttentionSpec& attention = layer.block.attention();
    const bool norms_rotated = attention.qk_norm == QkNorm::kRotatedHead;
    // Its weight says over how much.
    const bool has_norm = attention.qk_norm != QkNorm::kNone && !norms_rotated;
    std::vector<Row> queries, keys, values;
    for (const Row& x : input) {
      queries.push_back(norm_if(has_norm, layer, "q_norm", head_rows(layer, "q", x)));
      keys.push_back(norm_if(has_norm, layer, "k_norm", head_rows(layer, "k", x)));
      values.push_back(head_rows(layer, "v", x));
    }
    size_t positions = 0;
    for (const auto& live : seen) positions = std::max(positions, live.size());
    std::vector<std::vector<Turn>> turns;
    for (size_t i = 0; i < positions; ++i) {
      turns.push_back(turns_at(attention.rope, static_cast<int64_t>(i)));
    }
    const float* const sinks =
        attention.sink_logits ? at(layer.at + "sink_logits").data() : nullptr;
    std::vector<Row> found;
    for (size_t t = 0; t < input.size(); ++t) {
      Row read;
      for (int64_t head = 0; head < attention.heads; ++head) {
        const Row out = attend_head(layer, turns, queries[t], head, seen[t], keys, values, sinks);
        read.insert(read.end(), out.begin(), out.end());
      }
      found.push_back(linear(layer, "o", attention.output_bias, read));
    }
    return found;
  }

  // `turns`: of each position.
  Row attend_head(const Layer& layer, const std::vector<std::vector<Turn>>& turns, const Row& query,
                  int64_t head, const std::vector<int64_t>& live, const std::vector<Row>& keys,
                  const std::vector<Row>& values, const float* sinks) const {
    const AttentionSpec& attention = layer.block.attention();
    const bool norms_rotated = attention.qk_norm == QkNorm::kRotatedHead;
    const int64_t kv_head = head / (attention.heads / attention.kv_heads);
    const auto last = static_cast<int64_t>(live.size()) - 1;
    const double temperature =
        1 + attention.temperature *
                std::log(1 + std::floor(static_cast<double>(last) /
                                        static_cast<double>(attention.temperature_length)));
    const Row rotated_query =
        norm_if(norms_rotated, layer, "q_norm",
                times(temperature, rotated(attention, query, head, turns[last])));
    Row out(attention.head_dim);
    double total = sinks == nullptr ? 0 : std::exp(double{sinks[head]});
    for (int64_t rank = 0; rank <= last; ++rank) {
      const Row key = norm_if(norms_rotated, layer, "k_norm",
                              rotated(attention, keys[live[rank]], kv_head, turns[rank]));
      double score = 0;
      for (int64_t d = 0; d < attention.head_dim; ++d) score += rotated_query[d] * key[d];
      score *= attention.scale;
      const double cap = attention.soft_cap;
      if (cap > 0) score = cap * std::tanh(score / cap);
      if (!attention.slopes.empty()) {
        score -= attention.slopes[static_cast<size_t>(head)] * static_cast<double>(last - rank);
      }
      const double weight = std::exp(score);
      total += weight;
      for (int64_t d = 0; d < attention.head_dim; ++d) {
        out[d] += weight * values[live[rank]][kv_head * attention.head_dim + d];
      }
    }
    for (double& x : out) x /= total;
    return out;
  }

  static double activated(const DenseSpec& mlp, double x) {
    switch (mlp.activation) {
      case Activation::kSilu: return x / (1 + std::exp(-x));
      case Activation::kGelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
      case Activation::kGeluTanh:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      case Activation::kRelu2: return x > 0 ? x * x : 0;
      case Activation::kClampedSwiglu: {
        const double gate = std::min(x, 7.0);
        return gate / (1 + std::exp(-1.702 * gate));
      }
      case Activation::kXielu: {
        const double beta = mlp.xielu[2], eps = mlp.xielu[3];
        const double positive = std::log1p(std::exp(mlp.xielu[0]));
        const double negative = beta + std::log1p(std::exp(mlp.xielu[1]));
        return beta * x +
               (x > 0 ? positive * x * x : negative * (std::expm1(std::min(x, eps)) - x));
      }
    }
    return NAN;
  }
  // What the activated gate is multiplied by.
  static double factor(Activation activation, double up) {
    return activation == Activation::kClampedSwiglu ? std::clamp(up, -7.0, 7.0) + 1 : up;
  }

  Row transform(const Layer& layer, const Row& x) const {
    const ExpertsSpec* const experts = layer.block.experts();
    return experts == nullptr ? transform(layer, layer.block.dense(), "", x)
                              : mix(layer, *experts, x);
  }

  // `prefix`: of the names of its weights.
  Row transform(const Layer& layer, const DenseSpec& mlp, const std::string& prefix,
                const Row& x) const {
    Row inner = linear(layer, prefix + (mlp.gated ? "gate" : "up"), mlp.bias, x);
    for (double& number : inner) number = activated(mlp, number);
    if (mlp.gated) {
      const Row up = linear(layer, prefix + "up", mlp.bias, x);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] *= factor(mlp.activation, up[i]);
    }
    return linear(layer, prefix + "down", mlp.bias, inner);
  }

  // The choice itself is the op's: kernels/route_test.cc compares that with its definition.
  Row mix(const Layer& layer, const ExpertsSpec& spec, const Row& x) const {
    const Row logits = linear(layer, "router", spec.router_bias, x);
    const std::vector<float> given(logits.begin(), logits.end());
    std::vector<int32_t> ids(static_cast<size_t>(spec.chosen));
    std::vector<float> weights(static_cast<size_t>(spec.chosen));
    const auto numbers_of = [&](bool has, const char* name) {
      return has ? at(layer.at + name).data() : nullptr;
    };
    ThreadPool pool(1);
    reference_kernels().route({.logits = given.data(),
                               .choice_bias = numbers_of(spec.choice_bias, "choice_bias"),
                               .expert_scale = numbers_of(spec.expert_scale, "expert_scale"),
                               .rows = 1,
                               .rules = spec,
                               .ids = ids.data(),
                               .weights = weights.data()},
                              {&pool});
    routed_.back().push_back({given, ids});
    Row sum(x.size());
    for (size_t r = 0; r < ids.size(); ++r) {
      const std::string prefix = "experts." + std::to_string(ids[r]) + ".";
      add(times(weights[r], transform(layer, spec.expert, prefix, x)), &sum);
    }
    if (spec.shared_size > 0) {
      const double gate =
          spec.shared_gate ? 1 / (1 + std::exp(-linear(layer, "shared_gate", false, x)[0])) : 1;
      add(times(gate, transform(layer, spec.shared(), "shared.", x)), &sum);
    }
    return sum;
  }

  DecoderSpec spec_;
  const RandomWeights& model_;
  mutable std::vector<std::vector<Routed>> routed_;  // [layers]
};

}  // namespace sinkstream
