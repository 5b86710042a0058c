// Two walks over the same sums in the same order (Note [One order of addition]).
//
// By page: with few rows and many pages, a task attends to one page for one key head, and a second
// loop over the rows folds the pages' results. By query: otherwise, a task takes a few queries of
// one key head and folds page after page itself.
#pragma once

#include "kernels/cpu/attention/attend_page.inl"

// The pages that some tokens of one span see: sink pages, then window blocks.
struct VisiblePages {
  int64_t sink_pages = 0;
  int64_t first_block = 0;
  int64_t blocks = 0;

  int64_t count() const { return sink_pages + blocks; }
};

SINKSTREAM_INLINE int64_t visible_sinks(const AttentionSpan& span, int64_t token) {
  const int64_t t = span.index + token;
  return t + 1 < span.sinks ? t + 1 : span.sinks;
}

// What the tokens [begin, end) of a span see; they are counted within the span.
SINKSTREAM_INLINE VisiblePages visible_pages(const AttentionArgs& args, const AttentionSpan& span,
                                             int64_t begin, int64_t end) {
  VisiblePages pages;
  pages.sink_pages = divide_up(visible_sinks(span, end - 1), kPageRows);
  int64_t first = span.index + end;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t its_first = args.first[span.row + token];
    first = its_first < first ? its_first : first;
  }
  if (first < span.index + end) {
    pages.first_block = (first - span.sinks) / kPageRows;
    pages.blocks = (span.index + end - 1 - span.sinks) / kPageRows - pages.first_block + 1;
  }
  return pages;
}

// The index of the token in row 0 of page n of `pages`; for a sink also its position.
SINKSTREAM_INLINE int64_t first_row_of(const AttentionSpan& span, const VisiblePages& pages,
                                       int64_t n) {
  if (n < pages.sink_pages) return n * kPageRows;
  return span.sinks + (pages.first_block + n - pages.sink_pages) * kPageRows;
}

struct Rows {
  int64_t begin;
  int64_t end;
};

// The rows of page n of `pages` that a token sees; begin >= end if none.
SINKSTREAM_INLINE Rows visible_rows(const AttentionArgs& args, const AttentionSpan& span,
                                    const VisiblePages& pages, int64_t n, int64_t token) {
  const int64_t base = first_row_of(span, pages, n);
  Rows rows = {args.first[span.row + token] - base, span.index + token + 1 - base};
  if (n < pages.sink_pages) rows = {0, visible_sinks(span, token) - base};
  if (rows.begin < 0) rows.begin = 0;
  if (rows.end > kPageRows) rows.end = kPageRows;
  return rows;
}

// One query's running softmax over pages.
struct Fold {
  float largest;
  float total;
};

SINKSTREAM_INLINE void clear(Fold& fold, float* sums, int64_t vectors) {
  fold = {-__builtin_inff(), 0};
  for (int64_t v = 0; v < vectors; ++v) store(sums + v * kLanes, Vec{});
}

// Adds the next page.
SINKSTREAM_INLINE void join(Fold& fold, float* sums, const Fold& next, const float* next_sums,
                            int64_t vectors) {
  const float largest = fold.largest > next.largest ? fold.largest : next.largest;
  Vec differences{};
  differences[0] = fold.largest - largest;
  differences[1] = next.largest - largest;
  const Vec factors = exp_nonpositive(differences);
  fold = {largest, fold.total * factors[0] + next.total * factors[1]};
  for (int64_t v = 0; v < vectors; ++v) {
    const Vec added = load(next_sums + v * kLanes) * factors[1];
    store(sums + v * kLanes, fma(load(sums + v * kLanes), broadcast(factors[0]), added));
  }
}

// Adds a learned sink logit: a score without a value.
SINKSTREAM_INLINE void join_sink_logit(Fold& fold, float* sums, float logit, int64_t vectors) {
  alignas(64) static constexpr float kNothing[kMostSums] = {};
  join(fold, sums, {logit, 1}, kNothing, vectors);
}

SINKSTREAM_INLINE void finish(const Fold& fold, const float* sums, int64_t head_dim, float* out) {
  if (head_dim < kLanes) return store_first(out, load(sums) / fold.total, head_dim);
  for (int64_t d = 0; d + kLanes <= head_dim; d += kLanes) {
    store(out + d, load(sums + d) / fold.total);
  }
  if (head_dim % kLanes != 0) {
    const float* last = sums + head_dim / kLanes * kLanes;
    store(out + head_dim - kLanes, load(last) / fold.total);
  }
}

// Queries of one span that read one key head. They are pairs of a token and a head: pair p is head
// p % group of token p / group, with group = heads / kv_heads.
struct HeadQueries {
  const AttentionSpan* span;
  int64_t kv_head;
  int64_t group;
  int64_t begin, end;  // pairs, at least one
  VisiblePages pages;  // that their tokens see

  int64_t token(int64_t pair) const { return pair / group; }
  int64_t head(int64_t pair) const { return kv_head * group + pair % group; }
  // The row of `pair` in an array of [rows, heads].
  int64_t row(int64_t pair, int64_t heads) const {
    return (span->row + token(pair)) * heads + head(pair);
  }
};

// One key head's parts of a page.
struct HeadPage {
  const std::byte* keys;
  const std::byte* values;
  DType type;
};

// The parts of page n for the key head of `queries`.
SINKSTREAM_INLINE HeadPage head_page(const AttentionArgs& args, const HeadQueries& queries,
                                     int64_t n) {
  const AttentionSpan& span = *queries.span;
  const VisiblePages& pages = queries.pages;
  const bool is_sink = n < pages.sink_pages;
  const std::byte* page =
      is_sink
          ? span.sink_pages[n]
          : span.window_pages[(pages.first_block + n - pages.sink_pages) % span.window_page_count];
  const PageShape shape = {.kv_heads = args.shape.kv_heads,
                           .head_dim = args.shape.head_dim,
                           .type = is_sink ? args.sink_type : args.shape.type};
  return {.keys = page + shape.key_offset(queries.kv_head),
          .values = page + shape.value_offset(queries.kv_head),
          .type = shape.type};
}

// The cache lines of page n's keys that the queries read: a guess if a token in the middle sees
// rows that the first and last do not.
SINKSTREAM_INLINE Lines key_lines(const AttentionArgs& args, const HeadQueries& queries,
                                  int64_t n) {
  const HeadPage page = head_page(args, queries, n);
  const int64_t first_token = queries.token(queries.begin);
  const int64_t last_token = queries.token(queries.end - 1);
  const int64_t begin = visible_rows(args, *queries.span, queries.pages, n, first_token).begin;
  const int64_t end = visible_rows(args, *queries.span, queries.pages, n, last_token).end;
  if (begin >= end) return {};
  const int64_t side = page.type == DType::kBFloat16 ? 2 : 1;  // adjacent dimensions
  const int64_t column = side * bytes_of(page.type);
  return lines_of(page.keys, args.shape.head_dim / side, kPageRows * column, begin * column,
                  end * column);
}

// Attends to page n, and calls on_result(pair, fold, sums) for each query that sees a row of it.
// `next_keys`: see QueryTile.
template <typename OnResult>
SINKSTREAM_INLINE void visit_page(const AttentionArgs& args, const HeadQueries& queries, int64_t n,
                                  const Lines& next_keys, const OnResult& on_result) {
  const AttentionSpan& span = *queries.span;
  const int64_t head_dim = args.shape.head_dim;
  const bool is_sink = n < queries.pages.sink_pages;
  const float* query = is_sink ? args.query_sink : args.query_window;
  const HeadPage page = head_page(args, queries, n);
  const Scoring scoring = {
      .scale = args.scale, .soft_cap = args.soft_cap, .has_slopes = args.slopes != nullptr};

  QueryTile tile;
  tile.next_keys = &next_keys;
  TileResult result;
  int64_t pairs[kMostRows];
  for (int64_t pair = queries.begin; pair < queries.end; ++pair) {
    const int64_t token = queries.token(pair);
    const Rows rows = visible_rows(args, span, queries.pages, n, token);
    if (rows.begin < rows.end) {
      tile.queries[tile.count] = query + queries.row(pair, args.heads) * head_dim;
      tile.begin[tile.count] = rows.begin;
      tile.end[tile.count] = rows.end;
      if (args.slopes != nullptr) {
        const int64_t position = is_sink ? args.rank[span.row + token] : span.index + token;
        tile.slope[tile.count] = args.slopes[queries.head(pair)];
        tile.distance[tile.count] =
            static_cast<float>(position - first_row_of(span, queries.pages, n));
      }
      pairs[tile.count++] = pair;
    }
    if (tile.count == kMostRows || (pair + 1 == queries.end && tile.count > 0)) {
      with_cache_type(page.type, [&]<typename T>(T*) {
        attend_page(reinterpret_cast<const T*>(page.keys), reinterpret_cast<const T*>(page.values),
                    head_dim, scoring, tile, result);
      });
      for (int q = 0; q < tile.count; ++q) {
        on_result(pairs[q], Fold{result.largest[q], result.total[q]}, result.sums[q]);
      }
      tile.count = 0;
      tile.next_keys = nullptr;
    }
  }
}

// Pairs per task of the walk by query: their sums and one head's part of a page fit in 32 KiB.
constexpr int64_t kTaskPairs = 24;

// The tasks of the walk by query.
class QueryTasks {
 public:
  explicit QueryTasks(const AttentionArgs& args)
      : args_(args), group_(args.heads / args.shape.kv_heads) {
    for (int64_t s = 0; s < args.span_count; ++s) count_ += count_of(args.spans[s]);
  }

  int64_t count() const { return count_; }

  HeadQueries queries(int64_t task) const {
    const AttentionSpan* span = args_.spans;
    for (; task >= count_of(*span); ++span) task -= count_of(*span);
    const int64_t pairs = span->count * group_;
    const int64_t begin = task / args_.shape.kv_heads * kTaskPairs;
    const int64_t end = begin + kTaskPairs < pairs ? begin + kTaskPairs : pairs;
    return {.span = span,
            .kv_head = task % args_.shape.kv_heads,
            .group = group_,
            .begin = begin,
            .end = end,
            .pages = visible_pages(args_, *span, begin / group_, (end - 1) / group_ + 1)};
  }

 private:
  int64_t count_of(const AttentionSpan& span) const {
    return divide_up(span.count * group_, kTaskPairs) * args_.shape.kv_heads;
  }

  const AttentionArgs& args_;
  int64_t group_;
  int64_t count_ = 0;
};

void attend_by_query(const AttentionArgs& args, const Launch& launch) {
  const int64_t head_dim = args.shape.head_dim;
  const int64_t vectors = vectors_of(head_dim);
  const QueryTasks tasks(args);
  launch.pool->run(tasks.count(), [&](int64_t task, int thread) {
    const HeadQueries queries = tasks.queries(task);
    const int64_t count = queries.end - queries.begin;
    Fold folds[kTaskPairs];
    float* const scratch =
        reinterpret_cast<float*>(args.scratch) + thread * kTaskPairs * (head_dim + 16);
    const auto sums_of = [&](int64_t i) { return scratch + i * vectors * kLanes; };
    for (int64_t i = 0; i < count; ++i) clear(folds[i], sums_of(i), vectors);
    for (int64_t n = 0; n < queries.pages.count(); ++n) {
      const bool is_last = n + 1 == queries.pages.count();
      const int64_t next = task + 1 < tasks.count() ? task + 1 : task;  // usually this thread's
      visit_page(
          args, queries, n,
          is_last ? key_lines(args, tasks.queries(next), 0) : key_lines(args, queries, n + 1),
          [&](int64_t pair, const Fold& fold, const float* page_sums) {
            const int64_t i = pair - queries.begin;
            join(folds[i], sums_of(i), fold, page_sums, vectors);
          });
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t pair = queries.begin + i;
      if (args.sink_logits != nullptr) {
        join_sink_logit(folds[i], sums_of(i), args.sink_logits[queries.head(pair)], vectors);
      }
      finish(folds[i], sums_of(i), head_dim, args.out + queries.row(pair, args.heads) * head_dim);
    }
  });
}

// The tasks of the walk by page: each page that a span sees, for each key head.
class PageTasks {
 public:
  struct Task {
    HeadQueries queries;
    int64_t page;
  };

  explicit PageTasks(const AttentionArgs& args)
      : args_(args), group_(args.heads / args.shape.kv_heads) {
    for (int64_t s = 0; s < args.span_count; ++s) {
      pages_[s] = visible_pages(args, args.spans[s], 0, args.spans[s].count);
      const int64_t count = pages_[s].count();
      count_ += count * args.shape.kv_heads;
      most_pages_ = count > most_pages_ ? count : most_pages_;
    }
  }

  int64_t count() const { return count_; }
  int64_t most_pages() const { return most_pages_; }                      // of one span
  const VisiblePages& pages(int64_t span) const { return pages_[span]; }  // that the span sees

  Task task(int64_t task) const {
    const int64_t kv_heads = args_.shape.kv_heads;
    int64_t s = 0, page = task / kv_heads;
    for (; page >= pages_[s].count(); ++s) page -= pages_[s].count();
    return {.queries = {.span = &args_.spans[s],
                        .kv_head = task % kv_heads,
                        .group = group_,
                        .begin = 0,
                        .end = args_.spans[s].count * group_,
                        .pages = pages_[s]},
            .page = page};
  }

 private:
  const AttentionArgs& args_;
  int64_t group_;
  VisiblePages pages_[kSplitRows];
  int64_t count_ = 0;
  int64_t most_pages_ = 0;
};

void attend_by_page(const AttentionArgs& args, const Launch& launch) {
  const int64_t head_dim = args.shape.head_dim;
  const int64_t vectors = vectors_of(head_dim);
  const PageTasks tasks(args);
  // Results of pages, [rows][heads][most_pages]: the sums, then m and l.
  const int64_t result_floats = vectors * kLanes + 2;
  const auto result_at = [&](int64_t row, int64_t n) {
    return reinterpret_cast<float*>(args.scratch) + (row * tasks.most_pages() + n) * result_floats;
  };

  launch.pool->run(tasks.count(), [&](int64_t index, int) {
    const PageTasks::Task task = tasks.task(index);
    const int64_t next_index = index + 1 < tasks.count() ? index + 1 : index;
    const PageTasks::Task next = tasks.task(next_index);  // usually this thread's
    visit_page(args, task.queries, task.page, key_lines(args, next.queries, next.page),
               [&](int64_t pair, const Fold& fold, const float* sums) {
                 float* to = result_at(task.queries.row(pair, args.heads), task.page);
                 for (int64_t v = 0; v < vectors; ++v) {
                   store(to + v * kLanes, load(sums + v * kLanes));
                 }
                 to[vectors * kLanes] = fold.largest;
                 to[vectors * kLanes + 1] = fold.total;
               });
  });

  launch.pool->run(args.rows * args.heads, [&](int64_t index, int) {
    const int64_t row = index / args.heads;
    const int64_t head = index % args.heads;
    int64_t s = 0;
    while (row < args.spans[s].row || row >= args.spans[s].row + args.spans[s].count) ++s;
    const AttentionSpan& span = args.spans[s];
    Fold fold;
    alignas(64) float sums[kMostSums];
    clear(fold, sums, vectors);
    for (int64_t n = 0; n < tasks.pages(s).count(); ++n) {
      const Rows rows = visible_rows(args, span, tasks.pages(s), n, row - span.row);
      if (rows.begin >= rows.end) continue;
      const float* from = result_at(index, n);
      join(fold, sums, {from[vectors * kLanes], from[vectors * kLanes + 1]}, from, vectors);
    }
    if (args.sink_logits != nullptr) join_sink_logit(fold, sums, args.sink_logits[head], vectors);
    finish(fold, sums, head_dim, args.out + index * head_dim);
  });
}

// Whether some query sees enough pages for a second loop over threads, and the scratch has room.
SINKSTREAM_INLINE bool is_split_over_pages(const AttentionArgs& args, const Launch& launch) {
  if (args.rows > kSplitRows || launch.pool->threads() == 1) return false;
  int64_t most = 0;
  for (int64_t s = 0; s < args.span_count; ++s) {
    const AttentionSpan& span = args.spans[s];
    const int64_t pages = visible_pages(args, span, 0, span.count).count();
    most = pages > most ? pages : most;
  }
  return most > 2 && args.rows * most <= kSplitRows * args.scratch_pages;
}

void attention(const AttentionArgs& args, const Launch& launch) {
  if (is_split_over_pages(args, launch)) {
    attend_by_page(args, launch);
  } else {
    attend_by_query(args, launch);
  }
}
