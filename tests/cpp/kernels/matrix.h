// Random weights in every storage: as in a file, as plain numbers, and packed. The plain numbers
// come from a scalar decoder of GGUF's blocks that shares nothing with the code under test.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/dtype.h"
#include "kernels/pack.h"

namespace sinkstream {

constexpr Storage kStorages[] = {Storage::kF32,  Storage::kF16,  Storage::kBF16,
                                 Storage::kQ8_0, Storage::kQ4_0, Storage::kQ4_1};

template <typename T>
T number_at(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// One row of `cols` numbers, decoded the slow way.
inline std::vector<double> dequantize_row(Storage storage, const std::byte* row, int64_t cols) {
  std::vector<double> numbers;
  if (storage == Storage::kF32 || storage == Storage::kF16 || storage == Storage::kBF16) {
    for (int64_t i = 0; i < cols; ++i) {
      if (storage == Storage::kF32) numbers.push_back(number_at<float>(row + 4 * i));
      if (storage == Storage::kF16) numbers.push_back(to_float(number_at<f16>(row + 2 * i)));
      if (storage == Storage::kBF16) numbers.push_back(to_float(number_at<bf16>(row + 2 * i)));
    }
    return numbers;
  }
  for (int64_t block = 0; block < cols / 32; ++block) {
    const double scale = to_float(number_at<f16>(row));
    row += 2;
    double minimum = 0;
    if (storage == Storage::kQ4_1) {
      minimum = to_float(number_at<f16>(row));
      row += 2;
    }
    double codes[32];
    if (storage == Storage::kQ8_0) {
      for (double& code : codes) code = number_at<int8_t>(row++);
    } else {
      for (int i = 0; i < 16; ++i, ++row) {
        codes[i] = static_cast<int>(*row & std::byte{15});
        codes[i + 16] = static_cast<int>(*row >> 4);
      }
    }
    for (const double code : codes) {
      numbers.push_back(storage == Storage::kQ4_0 ? scale * (code - 8) : scale * code + minimum);
    }
  }
  return numbers;
}

struct FreePanels {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Panels = std::unique_ptr<std::byte[], FreePanels>;

// Zeros, aligned as panels. Exactly as long as needed, so that a sanitizer sees any overrun.
inline Panels make_panels(int64_t bytes) {
  Panels panels(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
  std::memset(panels.get(), 0, bytes);
  return panels;
}

struct Matrix {
  Storage storage;
  int64_t rows, cols;
  std::vector<std::byte> source;           // rows in the format of a file
  std::vector<std::vector<double>> plain;  // [rows][cols]
  Panels panels;

  PackedMatrix packed() const {
    return {.type = weight_type_of(storage), .rows = rows, .cols = cols, .panels = panels.get()};
  }
};

inline std::vector<std::byte> random_source(Storage storage, int64_t count, std::mt19937* random) {
  std::vector<std::byte> source;
  const auto put = [&](const auto& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    source.insert(source.end(), bytes, bytes + sizeof(value));
  };
  std::normal_distribution<float> normal;
  const auto outlier = [&] { return (*random)() % 50 == 0 ? 20.0f : 1.0f; };
  if (storage == Storage::kF32 || storage == Storage::kF16 || storage == Storage::kBF16) {
    for (int64_t i = 0; i < count; ++i) {
      const float number = normal(*random) * outlier();
      if (storage == Storage::kF32) put(number);
      if (storage == Storage::kF16) put(to_f16(number));
      if (storage == Storage::kBF16) put(to_bf16(number));
    }
    return source;
  }
  for (int64_t block = 0; block < count / 32; ++block) {
    // Ordinary scales, and occasionally one that is subnormal in float16.
    put(to_f16(normal(*random) * ((*random)() % 20 == 0 ? 1e-6f : 0.1f * outlier())));
    if (storage == Storage::kQ4_1) put(to_f16(normal(*random)));
    for (int i = 0; i < (storage == Storage::kQ8_0 ? 32 : 16); ++i) {
      put(static_cast<uint8_t>((*random)()));
    }
  }
  return source;
}

inline Matrix random_matrix(Storage storage, int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  Matrix matrix{.storage = storage,
                .rows = rows,
                .cols = cols,
                .source = random_source(storage, rows * cols, &random),
                .plain = {},
                .panels = {}};
  const int64_t row_bytes = row_bytes_of(storage, cols);
  for (int64_t row = 0; row < rows; ++row) {
    matrix.plain.push_back(dequantize_row(storage, matrix.source.data() + row * row_bytes, cols));
  }
  matrix.panels = make_panels(packed_bytes(weight_type_of(storage), rows, cols));
  pack_rows(storage, matrix.source.data(), 0, rows, cols, matrix.panels.get());
  return matrix;
}

inline std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal(random) * (random() % 50 == 0 ? 20.0f : 1.0f);
  return numbers;
}

}  // namespace sinkstream
