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

// Of one group of a row.
struct ScaleAndMinimum {
  double scale, minimum;
};

// `scales`: a block's; `group` counts within the block.
inline ScaleAndMinimum scale_at(const PanelFormat& format, const std::byte* scales, int64_t r,
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
  }
  return {};
}

// The integer that a code stands for, and what it is scaled with.
struct CodedWeight {
  int value;
  ScaleAndMinimum group;
};

// `row` in [0, matrix.rows), `col` in [0, matrix.cols); the weights must be codes.
inline CodedWeight coded_weight_at(const PackedMatrix& matrix, int64_t row, int64_t col) {
  const PanelFormat format = format_of(matrix.type);
  const int64_t r = row % kPanelRows, in_block = col % format.block, c = col % kUnit;
  const std::byte* block =
      matrix.panel(row / kPanelRows) + col / format.block * block_bytes(format);
  const std::byte* unit = block + in_block / kUnit * unit_bytes(format);
  const int value = format.bits == 8
                        ? int{read_at<int8_t>(unit, (c / 4 * kPanelRows + r) * 4 + c % 4)}
                        : value_of(format, code_at(format, unit, r, c));
  return {value, scale_at(format, block + block_code_bytes(format), r, in_block / format.group)};
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
  const auto [value, group] = coded_weight_at(matrix, row, col);
  const double weight = group.scale * value;
  return has_minimum(format) ? weight + group.minimum : weight;  // −0 stays −0
}

}  // namespace sinkstream
