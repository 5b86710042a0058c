// A small decoder with seeded random weights, for tests of what must not change a result.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/table.h"
#include "model/cpu/decoder.h"

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
  // `stored`: weights that a file holds otherwise than as float32, as float16 or bfloat16.
  RandomDecoder(const Kernels& kernels, int threads, const DecoderOptions& options,
                const DecoderSpec& model_spec = small_spec(),
                const std::map<std::string, Storage>& stored = {})
      : spec(model_spec), store_(spec), stored_(stored), threads_(threads) {
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
      write(name, numbers, rows);
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
    const auto stored = stored_.find(name);
    store_.declare(name, stored == stored_.end() ? Storage::kF32 : stored->second, rows, cols);
    added_.push_back({name, rows, cols});
  }

  void write(const std::string& name, const std::vector<float>& numbers, int64_t rows) {
    const auto stored = stored_.find(name);
    if (stored == stored_.end()) return write_as(name, numbers, rows);
    std::vector<uint16_t> rounded;
    for (const float number : numbers) {
      rounded.push_back(stored->second == Storage::kF16 ? to_f16(number).bits
                                                        : to_bf16(number).bits);
    }
    write_as(name, rounded, rows);
  }
  template <typename T>
  void write_as(const std::string& name, const std::vector<T>& numbers, int64_t rows) {
    store_.write(name, reinterpret_cast<const std::byte*>(numbers.data()),
                 static_cast<int64_t>(numbers.size() * sizeof(T)), 0, rows);
  }

  WeightStore store_;
  std::map<std::string, Storage> stored_;
  ThreadPool threads_;
  std::vector<Added> added_;
};

}  // namespace sinkstream
