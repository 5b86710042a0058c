#include "kernels/pack_split.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/check.h"
#include "common/divide_up.h"
#include "common/dtype.h"
#include "kernels/pack_unit.h"

namespace sinkstream {

namespace {

int bits_of(const SplitFormat& format) {
  return format.storage == Storage::kInt4 || format.storage == Storage::kMXFP4 ? 4 : 8;
}

int64_t scale_bytes_of(const SplitFormat& format) {
  return format.storage == Storage::kMXFP4 ? 1 : row_of(format.scale_type).bytes;
}

int64_t per_word(const SplitFormat& format) { return 32 / bits_of(format); }

// Which field of its word row `row` is, in kAwq.
int64_t awq_index(int64_t row) { return row % 2 * 4 + row % 8 / 2; }

// Bytes of `count` fields, in whole words.
int64_t word_bytes(const SplitFormat& format, int64_t count) {
  return divide_up(count, per_word(format)) * 4;
}

// Bytes of `count` codes that follow each other: those of FP8 are in no words.
int64_t code_bytes(const SplitFormat& format, int64_t count) {
  return format.storage == Storage::kFp8 ? count : word_bytes(format, count);
}

// The tensors of one piece in memory.
struct Piece {
  const SplitFormat& format;
  int64_t rows, cols;  // of the matrix
  const SplitPiece& at;
  const std::byte* tensors[kSplitTensors];

  int64_t groups() const { return divide_up(cols, format.group); }
  int64_t first_group() const { return divide_up(at.col, format.group); }
  int64_t scale_rows() const { return divide_up(rows, format.scale_rows); }

  // Field `i` of fields of kBits bits from `from` on.
  template <int kBits>
  static uint8_t field(const std::byte* from, int64_t i) {
    const auto byte = static_cast<uint8_t>(from[i * kBits / 8]);
    if constexpr (kBits == 8) return byte;
    return i % 2 == 0 ? byte & 15 : byte >> 4;
  }

  template <SplitLayout kLayout, int kBits>
  uint8_t code(int64_t row, int64_t col) const {
    const std::byte* codes = tensors[0];
    if constexpr (kLayout == SplitLayout::kAwq) {
      return field<4>(codes + ((col - at.col) * (rows / 8) + row / 8) * 4, awq_index(row));
    } else if constexpr (kLayout == SplitLayout::kGptq) {
      constexpr int64_t kPerWord = 32 / kBits;
      const int64_t word = col / kPerWord - at.col / kPerWord;
      return field<kBits>(codes + (word * rows + row) * 4, col % kPerWord);
    } else if constexpr (kLayout == SplitLayout::kColumns) {
      return field<8>(codes, (col - at.col) * rows + row);
    } else {
      const int64_t row_bytes = code_bytes(format, cols);
      return field<kBits>(codes + (row - at.row) * row_bytes, col);
    }
  }

  const std::byte* scale_at(int64_t row, int64_t group) const {
    const int64_t scale_row = row / format.scale_rows;
    const int64_t element = format.layout == SplitLayout::kRows
                                ? (scale_row - at.row / format.scale_rows) * groups() + group
                                : (group - first_group()) * scale_rows() + scale_row;
    return tensors[1] + element * scale_bytes_of(format);
  }

  // As the bits of a float.
  uint32_t scale(int64_t row, int64_t group) const {
    const std::byte* from = scale_at(row, group);
    uint32_t word = 0;
    std::memcpy(&word, from, scale_bytes_of(format));
    if (format.scale_type == Storage::kF16)
      return float_bits(to_float(f16{static_cast<uint16_t>(word)}));
    return format.scale_type == Storage::kBF16 ? word << 16 : word;
  }

  int zero_point(int64_t row, int64_t group) const {
    if (!format.has_zero_points) return format.zero_point;
    const int64_t per = per_word(format);
    int64_t word = 0, index = row % per;
    if (format.layout == SplitLayout::kRows) {
      word = (row / per - at.row / per) * groups() + group;
    } else {
      word = (group - first_group()) * divide_up(rows, per) + row / per;
      if (format.layout == SplitLayout::kAwq) index = awq_index(row);
    }
    uint32_t fields;
    std::memcpy(&fields, tensors[2] + word * 4, 4);
    fields += static_cast<uint32_t>(format.zero_point) * (per == 8 ? 0x11111111u : 0x01010101u);
    return static_cast<int>(fields >> (index * bits_of(format)) & (per == 8 ? 15 : 255));
  }
};

template <SplitLayout kLayout, WeightType kType>
bool pack_piece(const Piece& piece, const int32_t* order, std::byte* panels) {
  constexpr PanelFormat kFormat = format_of(kType);
  const int64_t block = split_block(piece.format, piece.cols);
  const SplitPiece& at = piece.at;
  bool all_finite = true;
  for (int64_t row = at.row; row < at.row + at.rows; ++row) {
    std::byte* panel = panels + row / kPanelRows * panel_bytes(kFormat, piece.cols, block);
    const int64_t r = row % kPanelRows;
    for (int64_t col = at.col; col < at.col + at.cols; col += kUnit) {
      std::byte* to = panel + col / block * block_bytes(kFormat, block);
      uint8_t codes[kUnit];
      for (int64_t i = 0; i < kUnit; ++i) {
        const int64_t from = order == nullptr ? col + i : order[col + i];
        codes[i] = piece.code<kLayout, kFormat.bits>(row, from);
      }
      if constexpr (kType == WeightType::kInt8Zero) {
        for (uint8_t& code : codes) code ^= 0x80;  // to two's complement
      }
      if constexpr (kType == WeightType::kE4m3) all_finite &= !has_nan_e4m3(codes);
      pack_unit<kFormat.bits>(codes, to + col % block / kUnit * unit_bytes(kFormat), r);
      if (col % block != 0) continue;
      const int64_t group = col / piece.format.group;
      std::byte* const scales = to + block_code_bytes(kFormat, block);
      if constexpr (kFormat.scales == Scales::kPower) {
        scales[r] = *piece.scale_at(row, group);
        all_finite &= scales[r] <= std::byte{kLargestPower};
        continue;
      }
      uint32_t word = piece.scale(row, group);
      all_finite &= is_finite_scale(word);
      if constexpr (has_zero_point(kFormat)) {
        word = (word & kScaleBits) | static_cast<uint32_t>(piece.zero_point(row, group));
      }
      pack_scale_word(kFormat, word, scales, r);
    }
  }
  return all_finite;
}

template <SplitLayout kLayout>
bool pack_of_layout(const Piece& piece, const int32_t* order, std::byte* panels) {
  if constexpr (kLayout == SplitLayout::kGptq || kLayout == SplitLayout::kRows) {
    if (piece.format.storage == Storage::kInt8) {
      return pack_piece<kLayout, WeightType::kInt8Zero>(piece, order, panels);
    }
  }
  if constexpr (kLayout == SplitLayout::kRows) {
    if (piece.format.storage == Storage::kFp8) {
      return pack_piece<kLayout, WeightType::kE4m3>(piece, order, panels);
    }
    if (piece.format.storage == Storage::kMXFP4) {
      return pack_piece<kLayout, WeightType::kMxfp4>(piece, order, panels);
    }
  }
  if constexpr (kLayout == SplitLayout::kColumns) {
    return pack_piece<kLayout, WeightType::kE4m3>(piece, order, panels);
  } else {
    return pack_piece<kLayout, WeightType::kInt4Zero>(piece, order, panels);
  }
}

// Rows [row, row + count) in each tensor.
SplitPiece piece_of_rows(const SplitFormat& format, int64_t row, int64_t count, int64_t cols) {
  const int64_t groups = divide_up(cols, format.group), per = per_word(format);
  const int64_t row_bytes = code_bytes(format, cols);
  const int64_t scale = row / format.scale_rows, zeros = row / per;
  const int64_t scale_end = (row + count - 1) / format.scale_rows + 1;
  const int64_t scale_row = groups * scale_bytes_of(format);
  SplitPiece piece = {.row = row, .rows = count, .col = 0, .cols = cols, .spans = {}};
  piece.spans[0] = {row * row_bytes, count * row_bytes};
  piece.spans[1] = {scale * scale_row, (scale_end - scale) * scale_row};
  if (format.has_zero_points) {
    piece.spans[2] = {zeros * groups * 4, (divide_up(row + count, per) - zeros) * groups * 4};
  }
  return piece;
}

// Columns [col, col + count) in each tensor, and the scales of the groups that begin there.
SplitPiece piece_of_cols(const SplitFormat& format, int64_t rows, int64_t col, int64_t count) {
  const bool is_gptq = format.layout == SplitLayout::kGptq;
  const int64_t together = is_gptq ? per_word(format) : 1;  // columns in a row of words
  const int64_t row_bytes = is_gptq ? rows * 4 : code_bytes(format, rows);
  const int64_t group = divide_up(col, format.group);
  const int64_t groups = divide_up(col + count, format.group) - group;
  const int64_t zeros = word_bytes(format, rows);
  const int64_t scales = divide_up(rows, format.scale_rows) * scale_bytes_of(format);
  SplitPiece piece = {.row = 0, .rows = rows, .col = col, .cols = count, .spans = {}};
  piece.spans[0] = {col / together * row_bytes, count / together * row_bytes};
  piece.spans[1] = {group * scales, groups * scales};
  if (format.has_zero_points) piece.spans[2] = {group * zeros, groups * zeros};
  return piece;
}

}  // namespace

bool can_pack_split(const SplitFormat& format, int64_t cols) {
  // A piece of columns has only the scales of groups that begin in it.
  const bool has_whole_groups = cols % format.group == 0;
  const bool is_by_rows = format.layout == SplitLayout::kRows;
  if (format.layout == SplitLayout::kColumns) {
    return format.storage == Storage::kFp8 && split_block(format, cols) % kUnit == 0;
  }
  if (format.storage == Storage::kMXFP4) {
    return is_by_rows && has_whole_groups && format.group == kUnit;
  }
  return split_block(format, cols) % kUnit == 0 && (has_whole_groups || is_by_rows);
}

int64_t split_block(const SplitFormat& format, int64_t cols) {
  return std::gcd(format.group, cols);
}

std::vector<SplitPiece> split_pieces(const SplitFormat& format, int64_t rows, int64_t cols,
                                     bool is_ordered, int64_t bytes) {
  std::vector<SplitPiece> pieces;
  if (format.layout == SplitLayout::kRows) {
    const int64_t panel = kPanelRows * cols * bits_of(format) / 8;
    const int64_t step = std::max<int64_t>(1, bytes / panel) * kPanelRows;
    for (int64_t row = 0; row < rows; row += step) {
      pieces.push_back(piece_of_rows(format, row, std::min(step, rows - row), cols));
    }
    return pieces;
  }
  // Pieces of kColumns begin with a group, so that the last group may have fewer columns.
  const int64_t together = format.layout == SplitLayout::kColumns ? format.group : kUnit;
  const int64_t unit = together * rows * bits_of(format) / 8;
  const int64_t step = is_ordered ? cols : std::max<int64_t>(1, bytes / unit) * together;
  for (int64_t col = 0; col < cols; col += step) {
    pieces.push_back(piece_of_cols(format, rows, col, std::min(step, cols - col)));
  }
  return pieces;
}

bool pack_split(const SplitFormat& format, int64_t rows, int64_t cols, const int32_t* order,
                const SplitPiece& piece, const std::byte* source, std::byte* panels) {
  SINKSTREAM_CHECK(can_pack_split(format, cols), "cols is ", cols);
  const Piece found = {.format = format,
                       .rows = rows,
                       .cols = cols,
                       .at = piece,
                       .tensors = {source, source + piece.spans[0].bytes,
                                   source + piece.spans[0].bytes + piece.spans[1].bytes}};
  switch (format.layout) {
    case SplitLayout::kAwq: return pack_of_layout<SplitLayout::kAwq>(found, order, panels);
    case SplitLayout::kGptq: return pack_of_layout<SplitLayout::kGptq>(found, order, panels);
    case SplitLayout::kRows: return pack_of_layout<SplitLayout::kRows>(found, order, panels);
    case SplitLayout::kColumns: return pack_of_layout<SplitLayout::kColumns>(found, order, panels);
  }
  return false;
}

}  // namespace sinkstream
