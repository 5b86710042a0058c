// Weights of a linear map, in the layout that all CPU tables read. Knows nothing about files;
// pack.h fills it.
//
// Note: [Panels]
// A panel is 16 rows (output features) with all of K (cols, input features). It is contiguous, so
// that one pass streams one address range. Rows and columns past the end are zero. Inside a panel:
//
//   float32          [K][16]
//   float16          [K][16]
//   bfloat16         [K/2][16][2]       pairs along K, as vdpbf16ps and AMX read them
//   codes            blocks: the codes of each of the block's units of 32 columns, then the scales
//                    of its groups (panel_format.h)
//
// A unit of 8-bit codes is [8][16][4], quads along K. A unit of b-bit codes is [b][16] words and
// has no padding. The low half of a word belongs to even columns, the high half to odd ones; in
// each half lie ⌊16 / b⌋ codes, the first in the lowest bits. Pair p, the columns 2p and 2p + 1:
//
//   b = 2, 4   is code p mod 16/b of word p / (16/b)
//   b = 3, 5   the same for p < 15, with 5 and 3 codes in a half. Bit 15 is left over: that of
//              word i is bit i of pair 15
//   b = 6      with p = 8h + j, in words 3h .. 3h + 2: code j / 3 of word j mod 3 for j < 6. Four
//              bits are left over: those of word 3h are the low bits of j = 6, those of word 3h + 1
//              of j = 7; of word 3h + 2, bits 12 and 13 are the high bits of 6, 14 and 15 of 7
//
// The weights are those of the file's blocks (pack.h), bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/divide_up.h"
#include "kernels/panel_format.h"

namespace sinkstream {

// `cols` must be a multiple of the block for codes. `open`: PackedMatrix::block.
constexpr int64_t panel_bytes(const PanelFormat& format, int64_t cols, int64_t open = kUnit) {
  switch (format.number) {
    case Number::kFloat32: return kPanelRows * cols * 4;
    case Number::kFloat16: return kPanelRows * cols * 2;
    case Number::kBFloat16: return kPanelRows * (cols + cols % 2) * 2;
    case Number::kCode: break;
  }
  return cols / block_cols(format, open) * block_bytes(format, open);
}

constexpr int64_t panel_bytes(WeightType type, int64_t cols, int64_t open = kUnit) {
  return panel_bytes(format_of(type), cols, open);
}

constexpr int64_t panel_count(int64_t rows) { return divide_up(rows, kPanelRows); }

constexpr int64_t packed_bytes(WeightType type, int64_t rows, int64_t cols, int64_t open = kUnit) {
  return panel_count(rows) * panel_bytes(type, cols, open);
}

struct PackedMatrix {
  WeightType type = WeightType::kFloat32;
  int64_t rows = 0;                   // output features
  int64_t cols = 0;                   // input features, K
  const std::byte* panels = nullptr;  // [panel_count(rows)][panel_bytes], 64-byte aligned
  int64_t block = kUnit;              // columns of a block, where the format leaves it open
  // [cols]: column i is multiplied by input order[i]. Null: by input i. Who calls `linear` puts the
  // inputs into this order.
  const int32_t* order = nullptr;

  const std::byte* panel(int64_t index) const {
    return panels + index * panel_bytes(type, cols, block);
  }
};

}  // namespace sinkstream
