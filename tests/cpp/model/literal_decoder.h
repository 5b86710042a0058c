// The definition of a stream through a complete decoder, in double: the live tokens are a plain
// list, and every query rotates every key that it sees to the key's rank in that list.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/random_decoder.h"

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
  // Loses what `other` has lost.
  void keep_only(const LiveTokens& other) {
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

  explicit LiteralDecoder(const RandomDecoder& model) : spec_(model.spec), model_(model) {}

  // The tokens that each query sees, ascending.
  using Seen = std::vector<std::vector<int64_t>>;

  // Logits [tokens][vocab]; the query of tokens[t] sees in a layer the tokens that `seen[layer][t]`
  // lists.
  std::vector<Row> logits(const std::vector<int32_t>& tokens,
                          const std::vector<const Seen*>& seen) const {
    std::vector<Row> hidden;
    for (const int32_t token : tokens) {
      const float* row = at("embedding").data() + token * spec_.hidden_size;
      hidden.emplace_back(row, row + spec_.hidden_size);
    }
    for (int64_t layer = 0; layer < spec_.layers; ++layer) {
      const std::string name = "layers." + std::to_string(layer) + ".";
      attend(name, *seen[static_cast<size_t>(layer)], &hidden);
      for (Row& x : hidden) add(transform(name, x), &x);
    }
    std::vector<Row> found;
    for (const Row& x : hidden) found.push_back(linear("output", "", norm("final_norm", x)));
    return found;
  }

 private:
  const std::vector<float>& at(const std::string& name) const { return model_.weights.at(name); }

  static void add(const Row& x, Row* sum) {
    for (size_t i = 0; i < x.size(); ++i) (*sum)[i] += x[i];
  }

  Row linear(const std::string& weight, const std::string& bias, const Row& x) const {
    const std::vector<float>& numbers = at(weight);
    Row y(numbers.size() / x.size());
    for (size_t row = 0; row < y.size(); ++row) {
      if (!bias.empty()) y[row] = at(bias)[row];
      for (size_t i = 0; i < x.size(); ++i) y[row] += numbers[row * x.size() + i] * x[i];
    }
    return y;
  }

  // Normalizes each piece of x that is as long as the weight by itself.
  Row norm(const std::string& weight, Row x) const {
    const std::vector<float>& scale = at(weight);
    for (size_t begin = 0; begin < x.size(); begin += scale.size()) {
      double squares = 0;
      for (size_t i = 0; i < scale.size(); ++i) squares += x[begin + i] * x[begin + i];
      const double root = std::sqrt(squares / static_cast<double>(scale.size()) + spec_.norm_eps);
      for (size_t i = 0; i < scale.size(); ++i) x[begin + i] *= scale[i] / root;
    }
    return x;
  }

  // One head of `heads`, rotated to a position.
  Row rotated(const Row& heads, int64_t head, int64_t position) const {
    const auto begin = heads.begin() + head * spec_.head_dim;
    Row x(begin, begin + spec_.head_dim);
    const auto pairs = static_cast<int64_t>(spec_.inverse_frequencies.size());
    for (int64_t d = 0; d < pairs; ++d) {
      const bool half = spec_.pairing == Pairing::kHalf;
      double& a = x[half ? d : 2 * d];
      double& b = x[half ? d + pairs : 2 * d + 1];
      const double angle = static_cast<double>(position) * spec_.inverse_frequencies[d];
      const double cos = std::cos(angle) * spec_.attention_factor;
      const double sin = std::sin(angle) * spec_.attention_factor;
      const double rotated_a = a * cos - b * sin;
      b = b * cos + a * sin;
      a = rotated_a;
    }
    return x;
  }

  void attend(const std::string& name, const Seen& seen, std::vector<Row>* hidden) const {
    std::vector<Row> queries, keys, values;
    for (const Row& x : *hidden) {
      const Row normed = norm(name + "attention_norm", x);
      queries.push_back(norm(name + "q_norm", linear(name + "q", name + "q_bias", normed)));
      keys.push_back(norm(name + "k_norm", linear(name + "k", name + "k_bias", normed)));
      values.push_back(linear(name + "v", name + "v_bias", normed));
    }
    for (size_t t = 0; t < hidden->size(); ++t) {
      Row read;
      for (int64_t head = 0; head < spec_.heads; ++head) {
        const Row out = attend_head(queries[t], head, seen[t], keys, values);
        read.insert(read.end(), out.begin(), out.end());
      }
      add(linear(name + "o", "", read), &(*hidden)[t]);
    }
  }

  Row attend_head(const Row& query, int64_t head, const std::vector<int64_t>& live,
                  const std::vector<Row>& keys, const std::vector<Row>& values) const {
    const int64_t kv_head = head / (spec_.heads / spec_.kv_heads);
    const auto last = static_cast<int64_t>(live.size()) - 1;
    const Row rotated_query = rotated(query, head, last);
    Row out(spec_.head_dim);
    double total = 0;
    for (int64_t rank = 0; rank <= last; ++rank) {
      const Row key = rotated(keys[live[rank]], kv_head, rank);
      double score = 0;
      for (int64_t d = 0; d < spec_.head_dim; ++d) score += rotated_query[d] * key[d];
      const double weight = std::exp(score / std::sqrt(static_cast<double>(spec_.head_dim)));
      total += weight;
      for (int64_t d = 0; d < spec_.head_dim; ++d) {
        out[d] += weight * values[live[rank]][kv_head * spec_.head_dim + d];
      }
    }
    for (double& x : out) x /= total;
    return out;
  }

  Row transform(const std::string& name, const Row& x) const {
    const Row normed = norm(name + "mlp_norm", x);
    Row gate = linear(name + "gate", "", normed);
    const Row up = linear(name + "up", "", normed);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    return linear(name + "down", "", gate);
  }

  DecoderSpec spec_;
  const RandomDecoder& model_;
};

}  // namespace sinkstream
