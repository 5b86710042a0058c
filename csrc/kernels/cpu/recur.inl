#pragma once

#include "kernels/cpu/math.inl"
#include "kernels/cpu/norm.inl"

// A task has some columns of a head's state, which stay in L1 for a whole span: rows of the state
// itself are so far apart that they would evict each other.
constexpr int64_t kStateVecs = kLanes == 16 ? 2 : 4;
constexpr int64_t kStateColumns = kStateVecs * kLanes;

struct StateColumns {
  alignas(64) float state[kMostKeyDim * kStateColumns];  // [key_dim, kStateColumns]
  float query[kMostKeyDim];
  float keys[2][kMostKeyDim];  // of a token, and of the one after it
};

// Vector c of `columns` numbers; zeros past their end.
SINKSTREAM_INLINE Vec load_columns(const float* from, int64_t columns, int64_t c) {
  const int64_t rest = columns - c * kLanes;
  if (rest >= kLanes) return load(from + c * kLanes);
  return rest > 0 ? load_first(from + c * kLanes, rest) : Vec{};
}
SINKSTREAM_INLINE void store_columns(float* to, int64_t columns, int64_t c, Vec x) {
  const int64_t rest = columns - c * kLanes;
  if (rest >= kLanes) return store(to + c * kLanes, x);
  if (rest > 0) store_first(to + c * kLanes, x, rest);
}

// A head's key or query, normalized; `factor` multiplies it further.
SINKSTREAM_INLINE void write_head(const RecurArgs& args, const float* from, float factor,
                                  float* to) {
  if (args.norm_eps > 0) {
    const float squares =
        sum_over(from, args.key_dim, 0, [](Vec sum, Vec x) { return fma(x, x, sum); });
    factor = static_cast<float>(factor / std::sqrt(double{squares} + args.norm_eps));
  }
  for (int64_t i = 0; i < args.key_dim; ++i) to[i] = from[i] * factor;
}

// kᵀS of each column.
SINKSTREAM_INLINE void read_key(const float* key, const float* state, int64_t key_dim,
                                Vec (&known)[kStateVecs]) {
  for (int64_t i = 0; i < key_dim; ++i) {
    const Vec k = broadcast(key[i]);
    for (int64_t c = 0; c < kStateVecs; ++c) {
      known[c] = fma(k, load(state + i * kStateColumns + c * kLanes), known[c]);
    }
  }
}

// S ← kept · S + k uᵀ, and adds qᵀS. Each row is written before the next token's key reads it, so
// that this needs no pass of its own: `next`, null if there is none.
template <bool kHasNext>
SINKSTREAM_INLINE void change_state(StateColumns* columns, const float* key, const float* next,
                                    int64_t key_dim, Vec kept, const Vec (&change)[kStateVecs],
                                    Vec (&sum)[kStateVecs], Vec (&known)[kStateVecs]) {
  for (int64_t i = 0; i < key_dim; ++i) {
    const Vec k = broadcast(key[i]), q = broadcast(columns->query[i]);
    const Vec after = kHasNext ? broadcast(next[i]) : Vec{};
    for (int64_t c = 0; c < kStateVecs; ++c) {
      float* const at = columns->state + i * kStateColumns + c * kLanes;
      const Vec state = fma(k, change[c], kept * load(at));
      store(at, state);
      sum[c] = fma(q, state, sum[c]);
      if constexpr (kHasNext) known[c] = fma(after, state, known[c]);
    }
  }
}

// Columns [first, first + count) of a head, count in [1, kStateColumns].
SINKSTREAM_INLINE void recur_columns(const RecurArgs& args, const StateSpan& span, int64_t head,
                                     int64_t first, int64_t count, StateColumns* columns) {
  const int64_t size = args.key_dim, width = args.value_dim;
  const int64_t before = args.key_head_of(head) * size;
  const int64_t at = head * size * width + first;
  const float query_factor =
      args.norm_eps > 0 ? static_cast<float>(1 / std::sqrt(static_cast<double>(size))) : 1.0f;
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t c = 0; c < kStateVecs; ++c) {
      store(columns->state + i * kStateColumns + c * kLanes,
            load_columns(span.read + at + i * width, count, c));
    }
  }
  const auto key_of = [&](int64_t row) { return args.key + row * args.key_stride + before; };
  write_head(args, key_of(span.row), 1, columns->keys[0]);
  Vec known[kStateVecs] = {};
  if (args.delta_rule) read_key(columns->keys[0], columns->state, size, known);
  for (int64_t t = 0; t < span.count; ++t) {
    const int64_t row = span.row + t;
    const float* const key = columns->keys[t % 2];
    float* const next = columns->keys[(t + 1) % 2];
    write_head(args, args.query + row * args.key_stride + before, query_factor, columns->query);
    const bool has_next = t + 1 < span.count;
    if (has_next) write_head(args, key_of(row + 1), 1, next);
    const Vec kept = exp_nonpositive(broadcast(args.decay[row * args.heads + head]));
    const float strength = args.strength[row * args.heads + head];
    Vec change[kStateVecs], sum[kStateVecs];
    for (int64_t c = 0; c < kStateVecs; ++c) {
      const Vec value =
          load_columns(args.value + row * args.value_stride + head * width + first, count, c);
      change[c] = strength * (value - kept * known[c]);
      sum[c] = args.skip == nullptr ? Vec{} : args.skip[head] * value;
      known[c] = Vec{};
    }
    if (args.delta_rule && has_next) {
      change_state<true>(columns, key, next, size, kept, change, sum, known);
    } else {
      change_state<false>(columns, key, next, size, kept, change, sum, known);
    }
    for (int64_t c = 0; c < kStateVecs; ++c) {
      store_columns(args.out + (row * args.heads + head) * width + first, count, c, sum[c]);
    }
  }
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t c = 0; c < kStateVecs; ++c) {
      store_columns(span.write + at + i * width, count, c,
                    load(columns->state + i * kStateColumns + c * kLanes));
    }
  }
}

void recur(const RecurArgs& args, const Launch& launch) {
  const int64_t parts = divide_up(args.value_dim, kStateColumns);
  launch.pool->run(args.span_count * args.heads * parts, [&](int64_t task, int) {
    const int64_t first = task % parts * kStateColumns;
    const int64_t rest = args.value_dim - first;
    StateColumns columns;
    recur_columns(args, args.spans[task / parts / args.heads], task / parts % args.heads, first,
                  rest < kStateColumns ? rest : kStateColumns, &columns);
  });
}
