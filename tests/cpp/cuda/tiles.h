// Matrices and inputs in the layouts of the GPU kernels.
#pragma once

#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "kernels/cuda/linear/weights.h"
#include "kernels/matrix.h"

namespace sinkstream::cuda {

struct Tiles {
  Panels memory;
  TiledMatrix matrix;
};

// Zeros, with room for `rows` rows. `open`: PackedMatrix::block.
inline Tiles empty_tiles(WeightType type, int64_t rows, int64_t cols, int64_t open = kUnit) {
  Panels memory = make_panels(tiled_bytes(type, rows, cols, open));
  const TiledMatrix matrix = {type, rows, cols, memory.get(), open};
  return {std::move(memory), matrix};
}

// Of the matrix that these make on top of each other.
inline Tiles tiles_of(const std::vector<PackedMatrix>& parts) {
  int64_t rows = 0;
  for (const PackedMatrix& part : parts) rows += part.rows;
  const PackedMatrix& first = parts.front();
  Tiles tiles = empty_tiles(first.type, rows, first.cols, first.block);
  const int64_t bytes = row_tile_bytes(format_of(first.type), first.cols, first.block);
  std::memset(tiles.memory.get(), 0xff, row_tiles(rows) * bytes);
  for (int64_t tile = 0; tile < row_tiles(rows); ++tile) {
    tile_rows(parts, tile, tiles.memory.get() + tile * bytes);
  }
  return tiles;
}

inline Tiles tiles_of(const Matrix& matrix) { return tiles_of({matrix.packed()}); }

// Rows of bfloat16 numbers, 16-byte aligned, with NaN after each row's columns and after the last
// row.
struct Bf16Rows {
  int64_t rows, cols, stride;
  Panels memory;

  Bf16Rows(int64_t rows_, int64_t cols_, int64_t padding = 8)
      : rows(rows_),
        cols(cols_),
        stride((cols_ + 7) / 8 * 8 + padding),
        memory(make_panels((rows_ + 1) * stride * 2)) {
    std::memset(memory.get(), 0xff, (rows + 1) * stride * 2);
  }

  bf16* row(int64_t i) const { return reinterpret_cast<bf16*>(memory.get()) + i * stride; }
  double at(int64_t i, int64_t col) const { return to_float(row(i)[col]); }
};

inline Bf16Rows random_bf16_rows(int64_t rows, int64_t cols, uint32_t seed) {
  Bf16Rows numbers(rows, cols);
  const std::vector<float> floats = random_floats(rows * cols, seed);
  for (int64_t i = 0; i < rows * cols; ++i) numbers.row(i / cols)[i % cols] = to_bf16(floats[i]);
  return numbers;
}

}  // namespace sinkstream::cuda
