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
//   int8             [K/32] blocks of   [8][16][4] codes, quads along K; 16 float16 scales
//   int4             [K/32] blocks of   [4][16] words of eight 4-bit codes; 16 float16 scales
//   int4 + minimum   the same, and 16 float16 minima
//
// In an int4 word, the code at bits 4n .. 4n+3 belongs to column 8·word + 2n for n < 4 and to
// column 8·word + 2(n − 4) + 1 for n >= 4: each 16-bit half holds one element of four pairs.
//
// A code's value is: int8, scale · code; int4, scale · (code − 8); int4 + minimum, scale · code +
// minimum. These are GGUF's Q8_0, Q4_0 and Q4_1, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/divide_up.h"

namespace sinkstream {

enum class WeightType : uint8_t { kFloat32, kFloat16, kBFloat16, kInt8, kInt4, kInt4Minimum };

constexpr int64_t kPanelRows = 16;
constexpr int64_t kGroup = 32;  // columns that share a scale

constexpr bool is_quantized(WeightType type) { return type >= WeightType::kInt8; }

constexpr const char* name_of(WeightType type) {
  switch (type) {
    case WeightType::kFloat32: return "float32";
    case WeightType::kFloat16: return "float16";
    case WeightType::kBFloat16: return "bfloat16";
    case WeightType::kInt8: return "int8";
    case WeightType::kInt4: return "int4";
    case WeightType::kInt4Minimum: return "int4_minimum";
  }
  return "";
}

// Bytes of one block of kGroup columns in a panel (quantized types only).
constexpr int64_t block_bytes(WeightType type) {
  const int64_t scales = kPanelRows * 2;
  switch (type) {
    case WeightType::kInt8: return kPanelRows * kGroup + scales;
    case WeightType::kInt4: return kPanelRows * kGroup / 2 + scales;
    case WeightType::kInt4Minimum: return kPanelRows * kGroup / 2 + 2 * scales;
    default: return 0;
  }
}

// `cols` must be a multiple of kGroup for the quantized types.
constexpr int64_t panel_bytes(WeightType type, int64_t cols) {
  switch (type) {
    case WeightType::kFloat32: return kPanelRows * cols * 4;
    case WeightType::kFloat16: return kPanelRows * cols * 2;
    case WeightType::kBFloat16: return kPanelRows * (cols + cols % 2) * 2;
    default: return cols / kGroup * block_bytes(type);
  }
}

constexpr int64_t panel_count(int64_t rows) { return divide_up(rows, kPanelRows); }

constexpr int64_t packed_bytes(WeightType type, int64_t rows, int64_t cols) {
  return panel_count(rows) * panel_bytes(type, cols);
}

struct PackedMatrix {
  WeightType type = WeightType::kFloat32;
  int64_t rows = 0;                   // output features
  int64_t cols = 0;                   // input features, K
  const std::byte* panels = nullptr;  // [panel_count(rows)][panel_bytes], 64-byte aligned

  const std::byte* panel(int64_t index) const { return panels + index * panel_bytes(type, cols); }
};

}  // namespace sinkstream
