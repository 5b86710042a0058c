// Packs matrices of Hugging Face folders, whose codes, scales and zero points are tensors of their
// own. Codes, scales and zero points are kept, bit for bit. Runs once, at load; plain code.
//
// Note: [Split matrices]
// A matrix has `rows` output features and `cols` input features. Codes and zero points of b bits
// are unsigned and lie in little-endian words of 32 bits, 32 / b to a word, the first in the lowest
// bits. `groups` is the number of groups along a row.
//
//                codes                         scales           zero points
//   kAwq         [cols][words of rows]         [groups][rows]   [groups][words of rows]
//   kGptq        [words of cols][rows]         [groups][rows]   [groups][words of rows]
//   kRows        [rows][words of cols]         […][groups]      [words of rows][groups]
//   kRows, FP8   [rows][cols] bytes            […][groups]      none
//   kRows, MXFP4 [rows][cols / 2] bytes        [rows][groups]   none
//   kColumns     [cols][rows] bytes of FP8     [groups][…]      none
//
// In kAwq, the eight fields of a word are rows 0, 2, 4, 6, 1, 3, 5, 7, from the lowest bits on. In
// kRows and kColumns, one scale serves `scale_rows` rows. A weight is scale · (code − zero point),
// and of FP8 scale · code. MXFP4 has the numbers of GGUF's blocks of that name in another order: of
// two adjacent columns the first is in the lower half of a byte, and a group is kUnit columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/pack.h"

namespace sinkstream {

enum class SplitLayout : uint8_t { kAwq, kGptq, kRows, kColumns };

struct SplitFormat {
  SplitLayout layout = SplitLayout::kRows;
  Storage storage = Storage::kInt4;    // kInt4, kInt8, kFp8 or kMXFP4
  Storage scale_type = Storage::kF16;  // kF16, kBF16; of FP8 also kF32; MXFP4 has bytes
  int64_t group = kUnit;               // columns that share a scale; the last may be fewer
  int64_t scale_rows = 1;              // rows that share it
  bool has_zero_points = false;        // a tensor of them
  // Of all weights. With a tensor of zero points: added to every field of its words, carries
  // included, which undoes how GPTQ's first version subtracts 1 from them.
  int zero_point = 0;
};

// Bytes of a file: a part of one tensor.
struct SplitSpan {
  int64_t offset = 0;  // from the tensor's first byte
  int64_t bytes = 0;
};

constexpr int kSplitTensors = 3;  // codes, scales, zero points

// A part of a matrix whose bytes are contiguous in each of its tensors.
struct SplitPiece {
  int64_t row = 0, rows = 0;  // of 16 rows each, the last may have fewer
  int64_t col = 0, cols = 0;  // of kUnit columns each
  SplitSpan spans[kSplitTensors];
};

// Whether columns can be in blocks of whole units that share a scale.
bool can_pack_split(const SplitFormat& format, int64_t cols);

// PackedMatrix::block of a matrix that `can_pack_split` allows.
int64_t split_block(const SplitFormat& format, int64_t cols);

// Cuts a matrix into pieces of about `bytes` bytes, or less. An ordered one (pack_split) is one
// piece, unless its layout is kRows.
std::vector<SplitPiece> split_pieces(const SplitFormat& format, int64_t rows, int64_t cols,
                                     bool is_ordered, int64_t bytes);

// Packs a piece of a matrix of `rows` × `cols` whose panels start at `panels` and are zero before
// its first piece. `source`: the spans, one after the other. `order`: [cols]; column i of the
// panels is column order[i] of the tensors; null: column i. The groups are those of the panels'
// columns. Threads may pack different pieces. Returns whether all scales and all codes of FP8 are
// finite.
bool pack_split(const SplitFormat& format, int64_t rows, int64_t cols, const int32_t* order,
                const SplitPiece& piece, const std::byte* source, std::byte* panels);

}  // namespace sinkstream
