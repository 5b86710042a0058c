// The arithmetic that decode and prefill share, bit for bit: one warp multiplies a tile of up to 16
// queries of one key head by one page. Also how pages are merged.
//
// Note: [A lane's part]
// A lane has group = lane / 4 and pair = lane % 4 (Note [Fragments] of tensor_core.cuh). It works
// on two queries: rows group and group + 8 of the tile, called its query 0 and 1. Of their 64
// scores it holds scores[j][i]: key 8 j + 2 pair + (i & 1), query i >> 1. A kernel for tiles of at
// most eight queries is compiled with kQueries = 1, and does nothing for the lane's query 1.
#pragma once

#include "kernels/cuda/attention/stage_page.cuh"

namespace sinkstream::cuda {

// What the lane's two queries see of a page.
struct TileView {
  RowRange rows[2];
  float slope[2] = {0, 0};     // of ALiBi
  float distance[2] = {0, 0};  // to row 0; one less for each later row. For ALiBi only
};

// A query's softmax over one or more pages.
struct SoftmaxState {
  float largest;  // m
  float total;    // l
};

// Factors for two states and their sums when they are merged.
struct Factors {
  float before;
  float added;
};

__device__ inline Factors factors_of(float largest_before, float largest_added) {
  const float largest = fmaxf(largest_before, largest_added);
  return {exp_approx(largest_before - largest), exp_approx(largest_added - largest)};
}

__device__ inline float merge(float before, float added, const Factors& factors) {
  return fmaf(before, factors.before, product(added, factors.added));
}

// Merges a learned sink logit: a score without a value.
__device__ inline Factors merge_logit(SoftmaxState& state, float logit) {
  const Factors factors = factors_of(state.largest, logit);
  state = {fmaxf(state.largest, logit), merge(state.total, 1, factors)};
  return factors;
}

// The warp copies up to 16 queries into its part of the shared memory: pairs [begin, end) of the
// span that begins at `row`, where pair p is head p % group of row p / group. Missing queries
// become zeros.
template <typename T>
__device__ inline void stage_queries(T* tile, const void* queries, const AttentionArgs& args,
                                     int64_t row, int kv_head, int begin, int end) {
  const int head_dim = int(args.pages.shape.head_dim);
  const int group = args.heads / int(args.pages.shape.kv_heads);
  __syncwarp();  // the previous queries are no longer read
  for_each_part(threadIdx.x % kWarpSize, kWarpSize, kTileRows, head_dim / 8, [&](int r, int part) {
    const int pair = begin + r;
    uint4 numbers = make_uint4(0, 0, 0, 0);
    if (pair < end) {
      const int64_t head = (row + pair / group) * args.heads + kv_head * group + pair % group;
      numbers = *reinterpret_cast<const uint4*>(static_cast<const T*>(queries) + head * head_dim +
                                                part * 8);
    }
    *reinterpret_cast<uint4*>(tile + r * padded(head_dim) + part * 8) = numbers;
  });
  __syncwarp();
}

// Adds products of `dims` dimensions to q · k for each query of the tile and each of 8 · kEights
// rows of the page, which begin at `keys`. Strides are in numbers.
template <typename T, int kEights>
__device__ inline void add_products(float (&scores)[kEights][4], const T* queries, int query_stride,
                                    const T* keys, int key_stride, int dims) {
  const int lane = threadIdx.x % kWarpSize;
  const T* query = queries + lane % 16 * query_stride + lane / 16 * 8;
  const T* key = keys + (lane / 16 * 8 + lane % 8) * key_stride + lane / 8 % 2 * 8;
  for (int d = 0; d < dims; d += 16) {
    uint32_t a[4];
    load_fragment4(a, query + d);
#pragma unroll
    for (int j = 0; j < kEights; j += 2) {
      uint32_t b[4];
      load_fragment4(b, key + 8 * j * key_stride + d);
      const uint32_t even[2] = {b[0], b[1]}, odd[2] = {b[2], b[3]};
      multiply_add<T>(scores[j], a, even);
      multiply_add<T>(scores[j + 1], a, odd);
    }
  }
}

template <int kEights>
__device__ inline void clear(float (&scores)[kEights][4]) {
#pragma unroll
  for (auto& score : scores) score[0] = score[1] = score[2] = score[3] = 0;
}

// q · k for each query of the tile and each row of the page.
template <typename T>
__device__ inline void multiply_keys(float (&scores)[8][4], const T* queries, const T* keys,
                                     int head_dim) {
  clear(scores);
  add_products(scores, queries, padded(head_dim), keys, padded(head_dim), head_dim);
}

// Whether scores are more than scaled products. Kernels are compiled for both cases: the code for
// soft-caps and ALiBi is in each of a lane's 32 scores, and slows down models that have neither.
inline bool bends_scores(const AttentionArgs& args) {
  return args.soft_cap > 0 || args.slopes != nullptr;
}

// Turns a product into a score: Note [Scores] of kernels/attention.h.
template <bool kBent>
__device__ inline float score_of(float sum, const AttentionArgs& args, float slope,
                                 float distance) {
  float score = product(sum, args.scale);
  if constexpr (kBent) {
    if (args.soft_cap > 0) score = product(tanhf(score / args.soft_cap), args.soft_cap);
    if (args.slopes != nullptr) score = fmaf(-slope, distance, score);
  }
  return score;
}

// The sum, or the maximum, over the four lanes that share a query.
__device__ inline float sum_of_lanes(float x) {
  x += __shfl_xor_sync(kWarp, x, 1);
  return x + __shfl_xor_sync(kWarp, x, 2);
}
__device__ inline float largest_of_lanes(float x) {
  x = fmaxf(x, __shfl_xor_sync(kWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kWarp, x, 2));
}

// Whether the lane's query `query` sees a row of the page.
__device__ inline bool sees(const TileView& view, int query, int row) {
  return row >= view.rows[query].begin && row < view.rows[query].end;
}

// Turns products into scores, or −∞ where a query does not see the row. `first`: the row of the
// page that scores[0] begins with. `key_scales`, [64], are read for int8 only.
template <typename Cache, bool kBent, int kQueries = 2, int kEights>
__device__ inline void finish_scores(float (&scores)[kEights][4], int first, const TileView& view,
                                     const AttentionArgs& args, const float* key_scales) {
#pragma unroll
  for (int j = 0; j < kEights; ++j) {
#pragma unroll
    for (int i = 0; i < 2 * kQueries; ++i) {
      const int row = first + 8 * j + int(threadIdx.x) % 4 * 2 + (i & 1), query = i >> 1;
      float sum = scores[j][i];
      if constexpr (kHasScales<Cache>) sum = product(sum, key_scales[row]);
      const float score = score_of<kBent>(sum, args, view.slope[query], view.distance[query] - row);
      scores[j][i] = sees(view, query, row) ? score : -INFINITY;
    }
  }
}

// Turns a page's scores into m, l and the weights p, rounded and packed as the first factor of
// multiply_values. For int8, p is multiplied by the value's scale after it is added to l.
// `value_scales`, [64], are read for int8 only.
template <typename Cache, int kQueries = 2>
__device__ inline void softmax_weights(float (&scores)[8][4], const TileView& view,
                                       const float* value_scales, SoftmaxState (&states)[2],
                                       uint32_t (&weights)[4][4]) {
  const int pair = threadIdx.x % 4;
  states[0] = states[1] = {-INFINITY, 0};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2 * kQueries; ++i) {
      SoftmaxState& state = states[i >> 1];
      state.largest = fmaxf(state.largest, scores[j][i]);  // ignores NaN
    }
  }
#pragma unroll
  for (int q = 0; q < kQueries; ++q) states[q].largest = largest_of_lanes(states[q].largest);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2 * kQueries; ++i) {
      const int row = 8 * j + 2 * pair + (i & 1), query = i >> 1;
      const bool is_seen = sees(view, query, row);
      const float weight = is_seen ? exp_approx(scores[j][i] - states[query].largest) : 0;
      states[query].total += weight;
      scores[j][i] = weight;
      if constexpr (kHasScales<Cache>) {
        if (is_seen) scores[j][i] = product(weight, value_scales[row]);
      }
    }
  }
#pragma unroll
  for (int q = 0; q < kQueries; ++q) states[q].total = sum_of_lanes(states[q].total);
    // A lane's scores of keys 16 k to 16 k + 15 are exactly its part of the first factor.
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int query = r & 1;
      const float* two = scores[2 * k + (r >> 1)] + 2 * query;
      weights[k][r] = query < kQueries ? pack<Element<Cache>>(two[0], two[1]) : 0;
    }
  }
}

// Σ weight · value over the page, from zero, for the 8 · kEights columns from `column` on, or the
// last 16: sums[n][i] is column + 8 n + 2 pair + (i & 1) of query i >> 1. keep(word, row) returns
// the values of rows `row` and row + 1 to multiply.
template <typename T, int kEights, typename Keep>
__device__ inline void multiply_values(float (&sums)[kEights][4], const uint32_t (&weights)[4][4],
                                       const T* values, int head_dim, int column,
                                       const Keep& keep) {
  const int lane = threadIdx.x % kWarpSize, stride = padded(head_dim);
  const T* value = values + lane % 16 * stride + lane / 16 * 8 + column;
#pragma unroll
  for (auto& sum : sums) sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 0; n < kEights; n += 2) {
      if (column + 8 * n >= head_dim) break;
      uint32_t b[4];
      load_fragment4_transposed(b, value + 16 * k * stride + 8 * n);
#pragma unroll
      for (int m = 0; m < 4; ++m) b[m] = keep(b[m], 16 * k + 8 * (m & 1) + 2 * (lane % 4));
      const uint32_t even[2] = {b[0], b[1]}, odd[2] = {b[2], b[3]};
      multiply_add<T>(sums[n], weights[k], even);
      multiply_add<T>(sums[n + 1], weights[k], odd);
    }
  }
}

template <typename T, int kEights>
__device__ inline void multiply_values(float (&sums)[kEights][4], const uint32_t (&weights)[4][4],
                                       const T* values, int head_dim, int column) {
  multiply_values(sums, weights, values, head_dim, column, [](uint32_t word, int) { return word; });
}

// The same for a tile whose queries see different rows, where a value that only some of them see is
// infinite or NaN: zero times that would be NaN for the others. So each query is multiplied
// separately, with zeros for the rows that it does not see.
template <typename T>
__device__ inline void multiply_values_separately(float (&sums)[4][4],
                                                  const uint32_t (&weights)[4][4], const T* values,
                                                  int head_dim, int column, const TileView& view) {
  const int group = threadIdx.x % kWarpSize / 4;
#pragma unroll 1
  for (int row = 0; row < kTileRows; ++row) {
    const bool second = row >= 8;
    const RowRange own = second ? view.rows[1] : view.rows[0];
    const RowRange seen = {__shfl_sync(kWarp, own.begin, row % 8 * 4),
                           __shfl_sync(kWarp, own.end, row % 8 * 4)};
    float alone[4][4];
    multiply_values(alone, weights, values, head_dim, column, [&](uint32_t word, int key) {
      const uint32_t low = key >= seen.begin && key < seen.end ? 0xFFFFu : 0;
      const uint32_t high = key + 1 >= seen.begin && key + 1 < seen.end ? 0xFFFF0000u : 0;
      return word & (low | high);
    });
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (group == row % 8 && (i >> 1) == int(second)) sums[n][i] = alone[n][i];
      }
    }
  }
}

}  // namespace sinkstream::cuda
