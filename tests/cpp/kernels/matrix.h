// Random weights in every storage: as in a file, as plain numbers, and packed. The plain numbers
// come from a scalar decoder of GGUF's blocks that shares nothing with the code under test.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/divide_up.h"
#include "common/dtype.h"
#include "kernels/pack.h"

namespace sinkstream {

// All of them.
inline constexpr auto kStorages = [] {
  std::array<Storage, std::size(kStorageRows)> storages{};
  for (size_t i = 0; i < storages.size(); ++i) storages[i] = kStorageRows[i].storage;
  return storages;
}();

// `cols`, or a few more so that the blocks are whole.
constexpr int64_t whole_blocks(Storage storage, int64_t cols) {
  return divide_up(cols, row_of(storage).block) * row_of(storage).block;
}

// Numbers of columns to test: whole blocks, and with float weights anything.
inline std::vector<int64_t> some_cols(Storage storage) {
  if (row_of(storage).block == 1) return {1, 2, 3, 5, 31, 32, 33, 64, 95, 576};
  if (row_of(storage).block == 32) return {32, 64, 576};
  return {256, 768};
}

template <typename T>
T number_at(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Number `i` of a block, as ggml or pack_split.h defines it.
inline double number_in_block(Storage storage, const std::byte* block, int i) {
  const auto byte = [&](int at) { return static_cast<int>(block[at]); };
  const auto half = [&](int at) { return double{to_float(number_at<f16>(block + at))}; };
  const auto nibble = [&](int at) {  // in blocks of 32
    return i % 32 < 16 ? byte(at + i % 16) & 15 : byte(at + i % 16) >> 4;
  };
  const auto fifth_bit = [&](int at) { return (byte(at + i / 8) >> (i % 8) & 1) * 16; };
  constexpr int kTable[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                            1,    13,   25,  38,  53,  69,  89,  113};
  const int half_block = i / 128, run = i / 32, lane = i % 32, group = i / 16;
  switch (storage) {
    case Storage::kQ8_0: return half(0) * static_cast<int8_t>(byte(2 + i));
    case Storage::kQ4_0: return half(0) * (nibble(2) - 8);
    case Storage::kQ4_1: return half(0) * nibble(4) + half(2);
    case Storage::kQ5_0: return half(0) * (nibble(6) + fifth_bit(2) - 16);
    case Storage::kQ5_1: return half(0) * (nibble(8) + fifth_bit(4)) + half(2);
    case Storage::kIQ4_NL: return half(0) * kTable[nibble(2)];
    case Storage::kMXFP4: {
      constexpr double kFp4[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      const double magnitude = kFp4[nibble(1) % 8];
      return std::ldexp(nibble(1) < 8 ? magnitude : -magnitude, byte(0) - 127);
    }
    case Storage::kQ2_K: {
      const int code = byte(16 + half_block * 32 + lane) / (1 << (2 * (run % 4))) % 4;
      return half(80) * (byte(group) % 16) * code - half(82) * (byte(group) / 16);
    }
    case Storage::kQ3_K: {
      const int low = byte(32 + half_block * 32 + lane) / (1 << (2 * (run % 4))) % 4;
      const int code = low - (byte(lane) / (1 << run) % 2 == 1 ? 0 : 4);
      const int packed = byte(96 + group % 8);
      const int scale = (group < 8 ? packed % 16 : packed / 16) +
                        byte(104 + group % 4) / (1 << (2 * (group / 4))) % 4 * 16;
      return half(108) * (scale - 32) * code;
    }
    case Storage::kQ4_K:
    case Storage::kQ5_K: {
      const int j = run % 4, packed = byte(4 + 8 + j);
      const int scale = run < 4 ? byte(4 + j) % 64 : packed % 16 + byte(4 + j) / 64 * 16;
      const int minimum = run < 4 ? byte(8 + j) % 64 : packed / 16 + byte(8 + j) / 64 * 16;
      const int codes = storage == Storage::kQ4_K ? 16 : 48;
      const int both = byte(codes + run / 2 * 32 + lane);
      int code = run % 2 == 0 ? both % 16 : both / 16;
      if (storage == Storage::kQ5_K) code += byte(16 + lane) / (1 << run) % 2 * 16;
      return half(0) * scale * code - half(2) * minimum;
    }
    case Storage::kQ6_K: {
      const int both = byte(half_block * 64 + i % 64);
      const int low = i % 128 < 64 ? both % 16 : both / 16;
      const int high = byte(128 + half_block * 32 + lane) / (1 << (2 * (run % 4))) % 4;
      return half(208) * static_cast<int8_t>(byte(192 + group)) * (low + high * 16 - 32);
    }
    case Storage::kIQ4_XS: {
      const int packed = byte(4 + run / 2);
      const int low = run % 2 == 0 ? packed % 16 : packed / 16;
      const int high = number_at<uint16_t>(block + 2) / (1 << (2 * run)) % 4;
      return half(0) * (low + high * 16 - 32) * kTable[nibble(8 + run * 16)];
    }
    case Storage::kInt4:
    case Storage::kInt8: {
      const auto word = number_at<uint32_t>(block);
      const int zero = static_cast<int>(word % 8192), code = byte(4 + i);
      const double scale = float_from_bits(word - zero);
      return scale * ((storage == Storage::kInt4 ? nibble(4) : code) - zero);
    }
    case Storage::kFp8: {
      const int code = byte(4 + i), exponent = code % 128 / 8, fraction = code % 8;
      const double magnitude = exponent == 0 ? fraction / 8.0 * std::exp2(-6)
                                             : (1 + fraction / 8.0) * std::exp2(exponent - 7);
      return number_at<float>(block) * (code < 128 ? magnitude : -magnitude);
    }
    default: return 0;
  }
}

// One row of `cols` numbers, decoded the slow way.
inline std::vector<double> dequantize_row(Storage storage, const std::byte* row, int64_t cols) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < cols; ++i) {
    if (storage == Storage::kF32) {
      numbers.push_back(number_at<float>(row + 4 * i));
    } else if (storage == Storage::kF16) {
      numbers.push_back(to_float(number_at<f16>(row + 2 * i)));
    } else if (storage == Storage::kBF16) {
      numbers.push_back(to_float(number_at<bf16>(row + 2 * i)));
    } else {
      const int64_t block = row_of(storage).block;
      const std::byte* const at = row + i / block * row_of(storage).bytes;
      numbers.push_back(number_in_block(storage, at, static_cast<int>(i % block)));
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

// Overwrites the numbers of a block that scale all others.
inline void put_scales(Storage storage, float scale, float minimum, std::vector<std::byte>* block) {
  const auto put = [&](int at, float number) {
    const f16 half = to_f16(number);
    std::memcpy(block->data() + at, &half, 2);
  };
  // The upper 19 bits; the zero point stays, within its bounds.
  const auto put_scale_word = [&](int most) {
    uint32_t zero;
    std::memcpy(&zero, block->data(), 4);
    const uint32_t word = (float_bits(scale) & 0xffffe000) | zero % (most + 1);
    std::memcpy(block->data(), &word, 4);
  };
  constexpr float kLevels = 32;  // of the second level's scales
  switch (storage) {
    case Storage::kQ4_1:
    case Storage::kQ5_1: put(0, scale); return put(2, minimum);
    case Storage::kQ2_K: put(80, scale / 8); return put(82, minimum / 8);
    case Storage::kQ3_K: return put(108, scale / kLevels);
    case Storage::kQ4_K:
    case Storage::kQ5_K: put(0, scale / kLevels); return put(2, minimum / kLevels);
    case Storage::kQ6_K: return put(208, scale / kLevels);
    case Storage::kIQ4_XS: return put(0, scale / kLevels);
    case Storage::kMXFP4:
      (*block)[0] = static_cast<std::byte>(120 + static_cast<int>((*block)[0]) % 16);
      return;
    case Storage::kInt4: return put_scale_word(16);
    case Storage::kInt8: return put_scale_word(256);
    case Storage::kFp8: std::memcpy(block->data(), &scale, 4); return;
    default: return put(0, scale);
  }
}

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
  const int64_t bytes = row_of(storage).bytes;
  for (int64_t block = 0; block < count / row_of(storage).block; ++block) {
    std::vector<std::byte> numbers(bytes);
    for (std::byte& number : numbers) number = static_cast<std::byte>((*random)());
    // Ordinary scales, and occasionally one that is subnormal in float16.
    const float ordinary = normal(*random) * 0.1f * outlier();
    if (storage == Storage::kFp8) {
      for (std::byte& code : numbers) code &= std::byte{0xfe};  // 0x7f and 0xff are NaN
    }
    put_scales(storage, (*random)() % 20 == 0 ? 1e-6f : ordinary, normal(*random), &numbers);
    source.insert(source.end(), numbers.begin(), numbers.end());
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
