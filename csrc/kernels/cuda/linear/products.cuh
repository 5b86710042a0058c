// Multiplies one tile of weights by its inputs, for one warp: the same operations in the same order
// for every output, whichever kernel calls it. Note: [One order along K] of linear/plan.h.
#pragma once

#include "kernels/cuda/linear/tile_registers.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sinkstream::cuda {

// The sums of a warp: [row tile][fragment of eight inputs], as multiply_add leaves them.
template <int kRowTiles, int kInputTiles>
using Sums = float[kRowTiles][kInputTiles][4];

// Loads the B fragments of two steps of eight inputs; `rows` is this lane's address for the first.
__device__ inline void load_inputs(uint32_t (&b)[kUnitSteps][2], const bf16* rows) {
  uint32_t words[4];
  load_fragment4(words, rows);
  b[0][0] = words[0], b[0][1] = words[1], b[1][0] = words[2], b[1][1] = words[3];
}

// Adds the products of 32 columns of numbers to the sums: unit `unit` of those that `tiles` hold.
// `inputs` is this lane's row of the first fragment of inputs, at the first column of its 8 × 8
// matrix; rows are kStride numbers apart. kInterleaved fragments of inputs are processed together,
// because products for one sum wait for each other.
template <int kStride, int kInterleaved, PanelFormat kFormat, int kUnits, int kRowTiles,
          int kInputTiles>
__device__ void add_numbers(Sums<kRowTiles, kInputTiles>& sums,
                            const TileRegisters<kFormat, kUnits> (&tiles)[kRowTiles], int unit,
                            const bf16* inputs) {
  constexpr int kPieces = pieces_of(kFormat);
  uint32_t weights[kRowTiles][kUnitSteps][kPieces][4];
#pragma unroll
  for (int i = 0; i < kRowTiles * kUnitSteps; ++i) {
    const int step = i % kUnitSteps;
    unpack(tiles[i / kUnitSteps], unit * kUnitSteps + step, weights[i / kUnitSteps][step]);
  }
#pragma unroll
  for (int first = 0; first < kInputTiles; first += kInterleaved) {
    uint32_t b[kInterleaved][kUnitSteps][2];
#pragma unroll
    for (int n = 0; n < kInterleaved; ++n) load_inputs(b[n], inputs + (first + n) * 8 * kStride);
#pragma unroll
    for (int i = 0; i < kPieces * kUnitSteps; ++i) {
      const int piece = i / kUnitSteps, step = i % kUnitSteps;
#pragma unroll
      for (int n = 0; n < kInterleaved; ++n) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          multiply_add<bf16>(sums[t][first + n], weights[t][step][piece], b[n][step]);
        }
      }
    }
  }
}

// Adds 32 columns of codes to the sums, one group of columns after the other. A fragment of ones
// yields the sums of a group's inputs, in the lanes that need them.
template <int kStride, int kInterleaved, PanelFormat kFormat, int kUnits, int kRowTiles,
          int kInputTiles>
__device__ void add_codes(Sums<kRowTiles, kInputTiles>& sums,
                          const TileRegisters<kFormat, kUnits> (&tiles)[kRowTiles], int unit,
                          const bf16* inputs) {
  constexpr bool kHasMinimum = adds_minimum(kFormat);
  constexpr uint32_t kAllOnes[4] = {kOnes, kOnes, kOnes, kOnes};
  constexpr int kGroups = int{kUnit} / kFormat.group, kGroupSteps = kFormat.group / kStepCols;
  static_assert(kGroups * kGroupSteps == kUnitSteps);
  uint32_t codes[kRowTiles][kUnitSteps][1][4];
  float2 scale[kRowTiles][kGroups], minimum[kRowTiles][kGroups];
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int step = 0; step < kUnitSteps; ++step) {
      unpack(tiles[t], unit * kUnitSteps + step, codes[t][step]);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      scale[t][group] = tiles[t].scale(unit * kGroups + group);
      if constexpr (kHasMinimum) minimum[t][group] = tiles[t].minimum(unit * kGroups + group);
    }
  }
#pragma unroll
  for (int first = 0; first < kInputTiles; first += kInterleaved) {
    __syncwarp();  // or the compiler loads all inputs ahead and runs out of registers
    uint32_t b[kInterleaved][kUnitSteps][2];
#pragma unroll
    for (int n = 0; n < kInterleaved; ++n) load_inputs(b[n], inputs + (first + n) * 8 * kStride);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float group_sums[kInterleaved][kRowTiles][4] = {}, input_sums[kInterleaved][4] = {};
#pragma unroll
      for (int step = group * kGroupSteps; step < (group + 1) * kGroupSteps; ++step) {
#pragma unroll
        for (int n = 0; n < kInterleaved; ++n) {
          if constexpr (kHasMinimum) multiply_add<bf16>(input_sums[n], kAllOnes, b[n][step]);
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) {
            multiply_add<bf16>(group_sums[n][t], codes[t][step][0], b[n][step]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kInterleaved * kRowTiles * 4; ++i) {
        const int n = i / (kRowTiles * 4), t = i / 4 % kRowTiles, at = i % 4;
        const float2 scales = scale[t][group];
        float& sum = sums[t][first + n][at];
        sum = fmaf(at < 2 ? scales.x : scales.y, group_sums[n][t][at], sum);
        if constexpr (kHasMinimum) {
          const float2 minima = minimum[t][group];
          sum = fmaf(at < 2 ? minima.x : minima.y, input_sums[n][at], sum);
        }
      }
    }
  }
}

// Adds the products of 32 columns of any format.
template <int kStride, int kInterleaved, PanelFormat kFormat, int kUnits, int kRowTiles,
          int kInputTiles>
__device__ inline void add_products(Sums<kRowTiles, kInputTiles>& sums,
                                    const TileRegisters<kFormat, kUnits> (&tiles)[kRowTiles],
                                    int unit, const bf16* inputs) {
  if constexpr (is_coded(kFormat)) {
    add_codes<kStride, kInterleaved>(sums, tiles, unit, inputs);
  } else {
    add_numbers<kStride, kInterleaved>(sums, tiles, unit, inputs);
  }
}

}  // namespace sinkstream::cuda
