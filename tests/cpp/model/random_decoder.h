// A small decoder with seeded random weights, for tests of what must not change a result.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/kernels.h"
#include "model/decoder.h"

namespace sinkstream {

// Awkward on purpose: nothing is a power of two or a multiple of a panel, heads are odd.
inline DecoderSpec small_spec() {
  DecoderSpec spec;
  spec.vocab_size = 53;
  spec.hidden_size = 42;
  spec.intermediate_size = 75;
  spec.layers = 2;
  spec.heads = 3;
  spec.kv_heads = 1;
  spec.head_dim = 14;
  spec.norm_eps = 1e-5f;
  for (int pair = 0; pair < 7; ++pair) {
    spec.inverse_frequencies.push_back(std::pow(10000.0, -pair / 7.0));
  }
  spec.qkv_bias = true;
  spec.qk_norm = true;
  return spec;
}

class RandomDecoder {
 public:
  RandomDecoder(const Kernels& kernels, int threads, const DecoderOptions& options,
                const DecoderSpec& model_spec = small_spec())
      : spec(model_spec), store_(spec), threads_(threads) {
    const int64_t hidden = spec.hidden_size, inner = spec.intermediate_size;
    const int64_t q = spec.query_size(), kv = spec.kv_size();
    add("embedding", spec.vocab_size, hidden);
    for (int64_t layer = 0; layer < spec.layers; ++layer) {
      const std::string at = "layers." + std::to_string(layer) + ".";
      add(at + "attention_norm", hidden, 1);
      add(at + "q", q, hidden);
      add(at + "k", kv, hidden);
      add(at + "v", kv, hidden);
      add(at + "o", hidden, q);
      add(at + "mlp_norm", hidden, 1);
      add(at + "gate", inner, hidden);
      add(at + "up", inner, hidden);
      add(at + "down", hidden, inner);
      add(at + "q_bias", q, 1);
      add(at + "k_bias", kv, 1);
      add(at + "v_bias", kv, 1);
      add(at + "q_norm", spec.head_dim, 1);
      add(at + "k_norm", spec.head_dim, 1);
    }
    add("final_norm", hidden, 1);
    add("output", spec.vocab_size, hidden);
    store_.allocate();
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (const auto& [name, rows, cols] : added_) {
      std::vector<float> numbers(rows * cols);
      const float scale = cols == 1 ? 0.3f : 2.0f / std::sqrt(static_cast<float>(cols));
      const float mean = cols == 1 && name.ends_with("norm") ? 1.0f : 0.0f;
      for (float& number : numbers) number = mean + scale * normal(random);
      store_.write(name, reinterpret_cast<const std::byte*>(numbers.data()), rows * cols * 4, 0,
                   rows);
      weights[name] = std::move(numbers);
    }
    decoder = std::make_unique<Decoder>(spec, store_.finish(), kernels, &threads_, options);
  }

  DecoderSpec spec;
  std::map<std::string, std::vector<float>> weights;  // [rows, cols] each, as drawn
  std::unique_ptr<Decoder> decoder;

  DecoderWeights packed() const { return store_.finish(); }

 private:
  struct Added {
    std::string name;
    int64_t rows, cols;
  };

  void add(const std::string& name, int64_t rows, int64_t cols) {
    store_.declare(name, Storage::kF32, rows, cols);
    added_.push_back({name, rows, cols});
  }

  WeightStore store_;
  ThreadPool threads_;
  std::vector<Added> added_;
};

}  // namespace sinkstream
