// A few rows times a block of a page: out[q][column] = Σ_k a[q][k] · block[k][column]. Both scores
// and sums of values are this product, since keys are transposed (page.h).
//
// Each sum is one chain of fused multiply-adds in ascending k, regardless of what else is computed.
#pragma once

#include "kernels/cpu/cache_type.inl"
#include "kernels/cpu/prefetch_lines.inl"

// What one product reads and writes.
template <typename T>
struct Product {
  const float* const* a;  // [rows], each from k = 0 on
  const T* block;         // even and odd rows interleaved if kPaired<T>; codes if kScaled<T>
  int64_t columns;        // of the block, at least kLanes
  int64_t k_begin;
  int64_t k_end;
  float* out;  // [rows][out_stride]
  int64_t out_stride;
  bool accumulate;  // continues the chains in `out`
  Lines prefetch;   // prefetched in the meantime
};

// One vector of an even row, or of the odd row after it. `at` points into the even row.
template <bool kOdd>
SINKSTREAM_INLINE Vec load_row(const float* at, int64_t columns) {
  return load(kOdd ? at + columns : at);
}
template <bool kOdd>
SINKSTREAM_INLINE Vec load_row(const f16* at, int64_t columns) {
  return load_f16(kOdd ? at + columns : at);
}
template <bool kOdd>
SINKSTREAM_INLINE Vec load_row(const int8_t* at, int64_t columns) {
  return to_float(load_bytes(kOdd ? at + columns : at));
}
template <bool kOdd>
SINKSTREAM_INLINE Vec load_row(const bf16* at, int64_t) {
  const UintVec pairs = load_words(at);
  return as_float(kOdd ? pairs & 0xffff0000 : pairs << 16);
}

// Adds one row of the block to the sums.
template <bool kOdd, int kRows, int kVectors, typename T>
SINKSTREAM_INLINE void add_row(const float* const (&a)[kRows], int64_t k, const T* at,
                               int64_t columns, Vec (&sums)[kRows][kVectors]) {
  Vec factors[kRows];
  for (int q = 0; q < kRows; ++q) factors[q] = broadcast(a[q][k]);
  for (int v = 0; v < kVectors; ++v) {
    const Vec row = load_row<kOdd>(at + v * kLanes * (kPaired<T> ? 2 : 1), columns);
    for (int q = 0; q < kRows; ++q) sums[q][v] = fma(factors[q], row, sums[q][v]);
  }
}

// kRows × kVectors sums in registers, from `column` of the block to `out_column` of `out`. Every
// two k, one step of `prefetch`.
template <int kRows, int kVectors, typename T>
SINKSTREAM_INLINE void multiply_tile(const Product<T>& product, int64_t column, int64_t out_column,
                                     PrefetchRuns prefetch) {
  const float* a[kRows];
  for (int q = 0; q < kRows; ++q) a[q] = product.a[q];
  const int64_t columns = product.columns;
  const int64_t end = product.k_end;
  float* out = product.out + out_column;

  Vec sums[kRows][kVectors] = {};
  if (product.accumulate) {
    for (int q = 0; q < kRows; ++q) {
      for (int v = 0; v < kVectors; ++v) {
        sums[q][v] = load(out + q * product.out_stride + v * kLanes);
      }
    }
  }
  int64_t k = product.k_begin;
  const T* at = product.block + k / 2 * 2 * columns + column * (kPaired<T> ? 2 : 1);
  if (k % 2 == 1 && k < end) {
    add_row<true>(a, k++, at, columns, sums);
    at += 2 * columns;
  }
  for (; k + 1 < end; k += 2, at += 2 * columns) {
    prefetch.step();
    add_row<false>(a, k, at, columns, sums);
    // Hides that a paired row's words were just loaded: reading them from L1 again costs less than
    // keeping them, for which there are too few registers.
    asm("" : "+r"(at));
    add_row<true>(a, k + 1, at, columns, sums);
  }
  if (k < end) add_row<false>(a, k, at, columns, sums);
  for (int q = 0; q < kRows; ++q) {
    for (int v = 0; v < kVectors; ++v) {
      store(out + q * product.out_stride + v * kLanes, sums[q][v]);
    }
  }
}

// The maximum rows of one product, and vectors per tile: enough chains to hide the latency of fma,
// and no more than fit in registers (16, or 32 with AVX-512). On Zen 3 with bfloat16, 3 × 4 runs at
// half the speed of 3 × 3. On Zen 4, 2 × 8 reads heads of 128 in one pass, 3 to 7 % faster than in
// two.
constexpr int kMostRows = kLanes == 16 ? 6 : 4;
constexpr int tile_vectors(int rows) {
  if (rows == 1) return 8;
  if (kLanes == 16) return rows == 2 ? 8 : 4;
  return rows == 2 ? 4 : rows == 3 ? 3 : 2;
}

// The vectors [begin, end) of `out`. Vector v covers the columns from v · kLanes; if it would
// extend past the block, it covers the last kLanes columns instead, some of them a second time.
template <int kRows, typename T>
void multiply_rows(const Product<T>& product, int64_t begin, int64_t end) {
  constexpr int kVectors = tile_vectors(kRows);
  const int64_t whole = product.columns / kLanes;  // vectors that fit inside
  const int64_t inside = end < whole ? end : whole;
  // Each tile prefetches a part of each run; narrower tiles at the edge prefetch nothing.
  const int tiles = static_cast<int>(divide_up(end - begin, kVectors));
  const int64_t steps = (product.k_end - product.k_begin) / 2;
  int tile = 0;
  const auto next_prefetch = [&] { return prefetch_runs(product.prefetch, tile++, tiles, steps); };
  int64_t v = begin;
  for (; v + kVectors <= inside; v += kVectors) {
    multiply_tile<kRows, kVectors>(product, v * kLanes, v * kLanes, next_prefetch());
  }
  if constexpr (kVectors > 4) {
    for (; v + 4 <= inside; v += 4)
      multiply_tile<kRows, 4>(product, v * kLanes, v * kLanes, next_prefetch());
  }
  if constexpr (kVectors > 2) {
    for (; v + 2 <= inside; v += 2)
      multiply_tile<kRows, 2>(product, v * kLanes, v * kLanes, next_prefetch());
  }
  for (; v < inside; ++v) multiply_tile<kRows, 1>(product, v * kLanes, v * kLanes, next_prefetch());
  if (v < end)
    multiply_tile<kRows, 1>(product, product.columns - kLanes, v * kLanes, next_prefetch());
}

template <int kRows = kMostRows, typename T>
SINKSTREAM_INLINE void multiply(int rows, const Product<T>& product, int64_t begin, int64_t end) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply<kRows - 1>(rows, product, begin, end);
  }
  multiply_rows<kRows>(product, begin, end);
}
