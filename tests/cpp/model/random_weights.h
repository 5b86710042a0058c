// Seeded random weights for a small decoder.
#pragma once

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "model/random_specs.h"
#include "model/weights.h"

namespace sinkstream {

struct RandomWeights {
  // `stored`: the weights that the file holds as float16 or bfloat16; the others are float32.
  explicit RandomWeights(const DecoderSpec& model_spec = small_spec(),
                         const std::map<std::string, Storage>& stored = {})
      : spec(model_spec), store(spec), stored_(stored) {
    DecoderWeights unused;
    for (const WeightSlot& slot : weight_slots(spec, &unused)) {
      declare(slot.name, slot.rows, slot.cols);
    }
    store.allocate();
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (const auto& [name, rows, cols] : declared_) {
      std::vector<float> numbers(rows * cols);
      const float scale = cols == 1 ? 0.3f : 2.0f / std::sqrt(static_cast<float>(cols));
      const float mean = cols == 1 && name.ends_with("norm") ? 1.0f : 0.0f;
      for (float& number : numbers) number = mean + scale * normal(random);
      write(name, numbers, rows);
      weights[name] = std::move(numbers);
    }
  }

  DecoderSpec spec;
  std::map<std::string, std::vector<float>> weights;  // [rows, cols] each, before rounding
  WeightStore store;                                  // all written

 private:
  struct Declared {
    std::string name;
    int64_t rows, cols;
  };

  void declare(const std::string& name, int64_t rows, int64_t cols) {
    const auto stored = stored_.find(name);
    store.declare(name, stored == stored_.end() ? Storage::kF32 : stored->second, rows, cols);
    declared_.push_back({name, rows, cols});
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
    store.write(name, reinterpret_cast<const std::byte*>(numbers.data()),
                static_cast<int64_t>(numbers.size() * sizeof(T)), 0, rows);
  }

  std::map<std::string, Storage> stored_;
  std::vector<Declared> declared_;
};

}  // namespace sinkstream
