// Attention of a few queries over one page: the split of Note [One order of addition].
#pragma once

#include "kernels/cpu/attention/multiply.inl"
#include "kernels/cpu/math.inl"

// A head's sums fill whole vectors; see `multiply_rows` for the last one.
SINKSTREAM_INLINE int64_t vectors_of(int64_t head_dim) { return divide_up(head_dim, kLanes); }
constexpr int64_t kMostSums = divide_up(kMostHeadDim, kLanes) * kLanes;

// Queries of one key head, each of which sees at least one row of the page.
struct QueryTile {
  int count = 0;
  const float* queries[kMostRows];  // [head_dim]
  int64_t begin[kMostRows];         // rows [begin, end) are visible
  int64_t end[kMostRows];
  float slope[kMostRows];     // of ALiBi; unused without it
  float distance[kMostRows];  // to row 0; one less per row
  // Keys that will probably be read next: prefetched while this page is read, after its values.
  // Null if the page was read just before; then nothing is prefetched.
  const Lines* next_keys = nullptr;
};

// How a product of query and key becomes a score: Note [Scores].
struct Scoring {
  float scale;
  float soft_cap;  // 0: none
  bool has_slopes;
};

// The results of a tile's queries.
struct TileResult {
  float largest[kMostRows];                      // m, the largest score
  float total[kMostRows];                        // l = Σ exp(s − m)
  alignas(64) float sums[kMostRows][kMostSums];  // o = Σ exp(s − m) · v
};

// The rows in the lanes of the vector at `row`.
SINKSTREAM_INLINE IntVec rows_from(int64_t row) {
  IntVec lanes{};
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  return lanes + static_cast<int32_t>(row);
}

// Which lanes of the vector at `row` are in [begin, end).
SINKSTREAM_INLINE IntVec visible_lanes(int64_t row, int64_t begin, int64_t end) {
  const IntVec rows = rows_from(row);
  return (rows >= static_cast<int32_t>(begin)) & (rows < static_cast<int32_t>(end));
}

// Multiplies rows by their scales, if they have any.
SINKSTREAM_INLINE Vec times_scales(Vec numbers, const float* scales, int64_t row) {
  return scales == nullptr ? numbers : numbers * load(scales + row);
}

// Turns products into scores, in place, where more than a scale is needed.
SINKSTREAM_INLINE void finish_scores(float* scores, int64_t begin, int64_t end,
                                     const Scoring& scoring, float slope, float distance,
                                     const float* key_scales) {
  for (int64_t row = begin / kLanes * kLanes; row < end; row += kLanes) {
    Vec score = times_scales(load(scores + row), key_scales, row) * scoring.scale;
    if (scoring.soft_cap > 0) score = tanh(score / scoring.soft_cap) * scoring.soft_cap;
    if (scoring.has_slopes) {
      const Vec distances = distance - to_float(rows_from(row));
      score = fma(broadcast(-slope), distances, score);
    }
    store(scores + row, score);
  }
}

// Turns one query's scores into weights exp(s − m), in place, and multiplies those by the scales of
// the stored values. In vectors that overlap [begin, end), rows outside of it become undefined;
// other vectors are not changed.
SINKSTREAM_INLINE void softmax_weights(float* scores, int64_t begin, int64_t end, float scale,
                                       const float* key_scales, const float* value_scales,
                                       float& largest, float& total) {
  const int64_t first = begin / kLanes * kLanes;
  const int64_t last = divide_up(end, kLanes) * kLanes;
  const Vec nothing = broadcast(-__builtin_inff());
  Vec maximum = nothing;
  for (int64_t row = first; row < last; row += kLanes) {
    Vec scaled = times_scales(load(scores + row), key_scales, row) * scale;
    if (row < begin || row + kLanes > end) {
      scaled = select(visible_lanes(row, begin, end), scaled, nothing);
    }
    store(scores + row, scaled);
    maximum = max(scaled, maximum);  // ignores NaN, which still reaches the total
  }
  largest = reduce_max(maximum);
  Vec sum{};
  for (int64_t row = first; row < last; row += kLanes) {
    const Vec weight = exp_nonpositive(load(scores + row) - largest);
    store(scores + row, times_scales(weight, value_scales, row));
    sum += weight;
  }
  total = reduce_add(sum);
}

// Σ weight · value for each query. Rows that all queries see are multiplied together. Rows before
// and after, which only some see, are multiplied only for those.
template <typename T>
void add_values(const QueryTile& tile, Product<T> product) {
  const int64_t vectors = vectors_of(product.columns);
  int64_t begin = 0;
  int64_t end = kPageRows;
  bool same = true;
  for (int q = 0; q < tile.count; ++q) {
    begin = tile.begin[q] > begin ? tile.begin[q] : begin;
    end = tile.end[q] < end ? tile.end[q] : end;
    same = same && tile.begin[q] == tile.begin[0] && tile.end[q] == tile.end[0];
  }
  const auto add_alone = [&](int q, int64_t k_begin, int64_t k_end, bool accumulate) {
    Product<T> alone = product;
    alone.a += q;
    alone.out += q * product.out_stride;
    alone.k_begin = k_begin;
    alone.k_end = k_end;
    alone.accumulate = accumulate;
    alone.prefetch = {};
    multiply_rows<1>(alone, 0, vectors);
  };
  if (begin >= end) {  // no rows in common
    for (int q = 0; q < tile.count; ++q) add_alone(q, tile.begin[q], tile.end[q], false);
    return;
  }
  if (!same) {
    for (int q = 0; q < tile.count; ++q) add_alone(q, tile.begin[q], begin, false);
  }
  product.k_begin = begin;
  product.k_end = end;
  product.accumulate = !same;
  multiply(tile.count, product, 0, vectors);
  for (int q = 0; q < tile.count; ++q) {
    if (tile.end[q] > end) add_alone(q, end, tile.end[q], true);
  }
}

// Widens heads narrower than a vector, so that whole vectors can be read.
template <typename T>
void add_narrow_values(const QueryTile& tile, Product<T> product) {
  constexpr int64_t kLine = kPaired<T> ? 2 : 1;  // adjacent elements of a column
  T wide[kPageRows * kLanes] = {};
  const int64_t size = product.columns * kLine;
  for (int64_t line = 0; line < kPageRows / kLine; ++line) {
    __builtin_memcpy(wide + line * kLanes * kLine, product.block + line * size, size * sizeof(T));
  }
  product.block = wide;
  product.columns = kLanes;
  add_values(tile, product);
}

// The lines that hold the rows [begin, end) of a head's values.
template <typename T>
SINKSTREAM_INLINE Lines value_lines(const T* values, int64_t head_dim, int64_t begin, int64_t end) {
  constexpr int64_t kSide = kPaired<T> ? 2 : 1;  // adjacent rows
  const int64_t bytes = kSide * head_dim * int64_t{sizeof(T)};
  return lines_between(reinterpret_cast<const std::byte*>(values), begin / kSide * bytes,
                       divide_up(end, kSide) * bytes);
}

// Adding so few values leaves little time to prefetch.
constexpr int64_t kFewRows = 8;

// `keys` and `values` are one head's parts of a page.
template <typename T>
void attend_page(const T* keys, const T* values, int64_t head_dim, const Scoring& scoring,
                 const QueryTile& tile, TileResult& result) {
  int64_t begin = kPageRows;
  int64_t end = 0;
  for (int q = 0; q < tile.count; ++q) {
    begin = tile.begin[q] < begin ? tile.begin[q] : begin;
    end = tile.end[q] > end ? tile.end[q] : end;
  }
  // What is prefetched while the keys are read, and while the values are.
  Lines during_keys;
  Lines during_values;
  if (tile.next_keys != nullptr) {
    during_keys = value_lines(values, head_dim, begin, end);
    during_values = *tile.next_keys;
    if (end - begin <= kFewRows) {
      prefetch_now(during_keys);
      during_keys = during_values;
      during_values = {};
    }
  }
  alignas(64) float scores[kMostRows][kPageRows];
  const Product<T> score = {.a = tile.queries,
                            .block = keys,
                            .columns = kPageRows,
                            .k_begin = 0,
                            .k_end = head_dim,
                            .out = scores[0],
                            .out_stride = kPageRows,
                            .accumulate = false,
                            .prefetch = during_keys};
  multiply(tile.count, score, begin / kLanes, divide_up(end, kLanes));

  // Null, at no cost, for types without scales.
  const float* key_scales = nullptr;
  const float* value_scales = nullptr;
  if constexpr (kScaled<T>) {
    key_scales = scales_of(keys, head_dim);
    value_scales = scales_of(values, head_dim);
  }
  const float* weights[kMostRows];
  const bool is_plain = scoring.soft_cap == 0 && !scoring.has_slopes;
  for (int q = 0; q < tile.count; ++q) {
    weights[q] = scores[q];
    if (!is_plain) {
      finish_scores(scores[q], tile.begin[q], tile.end[q], scoring, tile.slope[q], tile.distance[q],
                    key_scales);
    }
    softmax_weights(scores[q], tile.begin[q], tile.end[q], is_plain ? scoring.scale : 1.0f,
                    is_plain ? key_scales : nullptr, value_scales, result.largest[q],
                    result.total[q]);
  }
  const Product<T> sum = {.a = weights,
                          .block = values,
                          .columns = head_dim,
                          .k_begin = 0,
                          .k_end = 0,
                          .out = result.sums[0],
                          .out_stride = kMostSums,
                          .accumulate = false,
                          .prefetch = during_values};
  if (head_dim < kLanes) {
    add_narrow_values(tile, sum);
  } else {
    add_values(tile, sum);
  }
}
