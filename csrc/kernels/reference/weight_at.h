// One weight of a packed matrix, exactly. Slow; the definition of Note: [Panels].
#pragma once

#include <cmath>
#include <cstring>

#include "common/dtype.h"
#include "kernels/packed_matrix.h"

namespace sinkstream {

template <typename T>
T read_at(const std::byte* base, int64_t element) {
  T value;
  std::memcpy(&value, base + element * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// The code of row `r` of a panel in column `col` of a unit, below eight bits.
inline int code_at(const PanelFormat& format, const std::byte* unit, int64_t r, int64_t col) {
  const int bits = format.bits, pair = static_cast<int>(col / 2);
  const auto half = [&](int word) {
    return (read_at<uint32_t>(unit, word * kPanelRows + r) >> (col % 2 * 16)) & 0xffff;
  };
  const uint32_t mask = (1u << bits) - 1;
  if (bits == 6) {
    const int first = pair / 8 * 3, j = pair % 8;
    if (j < 6) return static_cast<int>(half(first + j % 3) >> (j / 3 * 6) & mask);
    const uint32_t high = half(first + 2) >> (j == 6 ? 12 : 14) & 3;
    return static_cast<int>(half(first + j - 6) >> 12 | high << 4);
  }
  const int per_half = 16 / bits;
  if (pair < per_half * bits) {
    return static_cast<int>(half(pair / per_half) >> (pair % per_half * bits) & mask);
  }
  uint32_t code = 0;
  for (int word = 0; word < bits; ++word) code |= half(word) >> 15 << word;
  return static_cast<int>(code);
}

// Of one group of a row: a weight is scale · (value − zero_point), plus the minimum if the format
// has one.
struct GroupScale {
  double scale, minimum, zero_point = 0;
};

// `bits`: the upper 19 are a float32 scale, the lower 13 a zero point. Where codes are two's
// complement, the zero point is that of codes that are `offset` more.
inline GroupScale scale_and_zero_point(uint32_t bits, int offset = 0) {
  return {float_from_bits(bits & kScaleBits), 0, int(bits & ~kScaleBits) - double(offset)};
}

inline double number_of_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code < 128 ? magnitude : -magnitude;
}

// `scales`: a block's; `group` counts within the block.
inline GroupScale scale_at(const PanelFormat& format, const std::byte* scales, int64_t r,
                           int64_t group) {
  const auto half = [&](int64_t vector) {
    return double{to_float(read_at<f16>(scales, vector * kPanelRows + r))};
  };
  // A vector of 16 bytes, after the float16.
  const auto byte = [&](int64_t halves, int64_t vector) {
    return int{read_at<int8_t>(scales, (2 * halves + vector) * kPanelRows + r)};
  };
  switch (format.scales) {
    case Scales::kNone: return {1, 0};
    case Scales::kHalf: return {half(0), 0};
    case Scales::kHalfMinimum: return {half(0), half(1)};
    case Scales::kTwoLevel: return {half(0) * byte(1, group), 0};
    case Scales::kTwoLevelMinimum:
      return {half(0) * byte(2, 2 * group), -half(1) * byte(2, 2 * group + 1)};
    case Scales::kNibbles: {
      const int both = byte(2, group) & 255;
      return {half(0) * (both & 15), -half(1) * (both >> 4)};
    }
    case Scales::kPower: return {std::ldexp(1.0, (byte(0, 0) & 255) - 128), 0};
    case Scales::kFloat: return {double{read_at<float>(scales, r)}, 0};
    case Scales::kZeroPoint24: {
      const uint32_t low = read_at<uint8_t>(scales + 2 * kPanelRows, r);
      return scale_and_zero_point(uint32_t{read_at<uint16_t>(scales, r)} << 16 | (low & 0xe0) << 8 |
                                  (low & 0x1f));
    }
    case Scales::kZeroPoint32: return scale_and_zero_point(read_at<uint32_t>(scales, r), 128);
  }
  return {};
}

// Where a code of a matrix is, and the scales of its block.
struct CodeAddress {
  const std::byte* unit;
  const std::byte* scales;
  int64_t row, col, group;  // of the panel, of the unit, of the block

  int byte() const { return read_at<int8_t>(unit, (col / 4 * kPanelRows + row) * 4 + col % 4); }
};

inline CodeAddress code_address(const PackedMatrix& matrix, int64_t row, int64_t col) {
  const PanelFormat format = format_of(matrix.type);
  const int64_t cols = block_cols(format, matrix.block), in_block = col % cols;
  const std::byte* block =
      matrix.panel(row / kPanelRows) + col / cols * block_bytes(format, matrix.block);
  return {.unit = block + in_block / kUnit * unit_bytes(format),
          .scales = block + block_code_bytes(format, matrix.block),
          .row = row % kPanelRows,
          .col = col % kUnit,
          .group = is_open(format) ? 0 : in_block / format.group};
}

// The integer that a code stands for, and what it is scaled with.
struct CodedWeight {
  int value;
  GroupScale group;
};

// `row` in [0, matrix.rows), `col` in [0, matrix.cols); the codes must stand for integers.
inline CodedWeight coded_weight_at(const PackedMatrix& matrix, int64_t row, int64_t col) {
  const PanelFormat format = format_of(matrix.type);
  const CodeAddress at = code_address(matrix, row, col);
  const int value =
      format.bits == 8 ? at.byte() : value_of(format, code_at(format, at.unit, at.row, at.col));
  return {value, scale_at(format, at.scales, at.row, at.group)};
}

// `row` in [0, matrix.rows), `col` in [0, matrix.cols).
inline double weight_at(const PackedMatrix& matrix, int64_t row, int64_t col) {
  const PanelFormat format = format_of(matrix.type);
  const std::byte* panel = matrix.panel(row / kPanelRows);
  const int64_t r = row % kPanelRows;
  switch (format.number) {
    case Number::kFloat32: return read_at<float>(panel, col * kPanelRows + r);
    case Number::kFloat16: return to_float(read_at<f16>(panel, col * kPanelRows + r));
    case Number::kBFloat16:
      return to_float(read_at<bf16>(panel, (col / 2 * kPanelRows + r) * 2 + col % 2));
    case Number::kCode: break;
  }
  if (format.values == CodeValues::kE4m3) {
    const CodeAddress at = code_address(matrix, row, col);
    const auto code = static_cast<uint8_t>(at.byte());
    return scale_at(format, at.scales, at.row, at.group).scale * number_of_e4m3(code);
  }
  const auto [value, group] = coded_weight_at(matrix, row, col);
  const double weight = group.scale * (value - group.zero_point);
  const bool adds_minimum = has_minimum(format) && !has_zero_point(format);
  return adds_minimum ? weight + group.minimum : weight;  // −0 stays −0
}

}  // namespace sinkstream
