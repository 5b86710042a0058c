// Writes one row's share of a panel's units and blocks: Note: [Panels].
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/packed_matrix.h"

namespace sinkstream {

// The words of row r in a unit of b-bit codes: Note: [Panels].
template <int kBits>
void pack_unit(const uint8_t* codes, std::byte* unit, int64_t r) {
  constexpr int kPerHalf = 16 / kBits;
  constexpr int kWhole = kBits == 6 ? 12 : kPerHalf * kBits;  // pairs that lie in a word
  uint32_t words[kBits] = {};
  const auto put = [&](int pair, int word, int shift, int from, int count) {
    const uint32_t mask = (1u << count) - 1;
    words[word] |= (codes[2 * pair] >> from & mask) << shift;
    words[word] |= (codes[2 * pair + 1] >> from & mask) << (16 + shift);
  };
  if constexpr (kBits == 6) {
    for (int h = 0; h < 2; ++h) {
      for (int j = 0; j < 6; ++j) put(8 * h + j, 3 * h + j % 3, j / 3 * 6, 0, 6);
      for (int j = 6; j < 8; ++j) {
        put(8 * h + j, 3 * h + j - 6, 12, 0, 4);
        put(8 * h + j, 3 * h + 2, j == 6 ? 12 : 14, 4, 2);
      }
    }
  } else {
    for (int pair = 0; pair < kWhole; ++pair) {
      put(pair, pair / kPerHalf, pair % kPerHalf * kBits, 0, kBits);
    }
    for (int word = 0; kWhole < 16 && word < kBits; ++word) put(15, word, 15, word, 1);
  }
  for (int word = 0; word < kBits; ++word) {
    std::memcpy(unit + (word * kPanelRows + r) * 4, &words[word], 4);
  }
}

// Eight bits: quads along K.
template <>
inline void pack_unit<8>(const uint8_t* codes, std::byte* unit, int64_t r) {
  for (int64_t quad = 0; quad < kUnit / 4; ++quad) {
    std::memcpy(unit + (quad * kPanelRows + r) * 4, codes + quad * 4, 4);
  }
}

// Writes a block's float32 scale with its zero point: FileBlock::word. `scales`: the block's.
inline void pack_scale_word(const PanelFormat& format, uint32_t word, std::byte* scales,
                            int64_t r) {
  if (format.scales != Scales::kZeroPoint24) {
    std::memcpy(scales + r * 4, &word, 4);
    return;
  }
  const auto upper = static_cast<uint16_t>(word >> 16);
  std::memcpy(scales + r * 2, &upper, 2);
  scales[2 * kPanelRows + r] = static_cast<std::byte>((word >> 8 & 0xe0) | (word & 0x1f));
}

inline constexpr uint8_t kLargestPower = 252;  // of kPower: leaves all weights finite

inline bool is_finite_scale(uint32_t word) { return (word & 0x7f800000) != 0x7f800000; }

// Whether one of a unit's FP8 codes is NaN.
inline bool has_nan_e4m3(const uint8_t* codes) {
  bool found = false;
  for (int64_t i = 0; i < kUnit; ++i) found |= (codes[i] & 0x7f) == 0x7f;
  return found;
}

}  // namespace sinkstream
