// Few rows, many pages: a task takes one page of one key head, and a second loop folds what they
// found. Otherwise a task takes a few queries of one key head and folds page by page as it goes.
// The two do the same sums in the same order (Note [One order of addition]).
#pragma once

#include "kernels/cpu/attention/page.inl"

// The pages that some tokens of one span see: sink pages, then window blocks.
struct SeenPages {
  int64_t sink_pages = 0;
  int64_t first_block = 0;
  int64_t blocks = 0;

  int64_t count() const { return sink_pages + blocks; }
};

SINKSTREAM_INLINE int64_t seen_sinks(const AttentionSpan& span, int64_t token) {
  const int64_t t = span.index + token;
  return t + 1 < span.sinks ? t + 1 : span.sinks;
}

// What the tokens [begin, end) of a span see, counted within the span.
SINKSTREAM_INLINE SeenPages seen_pages(const AttentionArgs& args, const AttentionSpan& span,
                                       int64_t begin, int64_t end) {
  SeenPages seen;
  seen.sink_pages = divide_up(seen_sinks(span, end - 1), kPageRows);
  int64_t first = span.index + end;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t its_first = args.first[span.row + token];
    first = its_first < first ? its_first : first;
  }
  if (first < span.index + end) {
    seen.first_block = (first - span.sinks) / kPageRows;
    seen.blocks = (span.index + end - 1 - span.sinks) / kPageRows - seen.first_block + 1;
  }
  return seen;
}

// The token in row 0 of page n of `seen`: its index, which for a sink is its position, too.
SINKSTREAM_INLINE int64_t first_row_of(const AttentionSpan& span, const SeenPages& seen,
                                       int64_t n) {
  if (n < seen.sink_pages) return n * kPageRows;
  return span.sinks + (seen.first_block + n - seen.sink_pages) * kPageRows;
}

struct Rows {
  int64_t begin;
  int64_t end;
};

// The rows of page n of `seen` that a token sees; begin >= end if none.
SINKSTREAM_INLINE Rows seen_rows(const AttentionArgs& args, const AttentionSpan& span,
                                 const SeenPages& seen, int64_t n, int64_t token) {
  const int64_t base = first_row_of(span, seen, n);
  Rows rows = {args.first[span.row + token] - base, span.index + token + 1 - base};
  if (n < seen.sink_pages) rows = {0, seen_sinks(span, token) - base};
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

// The next page joins.
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

// A learned sink logit joins: a score without a value.
SINKSTREAM_INLINE void join_logit(Fold& fold, float* sums, float logit, int64_t vectors) {
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

// One key head's parts of a page.
struct HeadPage {
  const std::byte* keys;
  const std::byte* values;
  DType type;
};

// Those of page n of `seen`.
SINKSTREAM_INLINE HeadPage head_page(const AttentionArgs& args, const AttentionSpan& span,
                                     const SeenPages& seen, int64_t n, int64_t kv_head) {
  const bool is_sink = n < seen.sink_pages;
  const std::byte* page =
      is_sink
          ? span.sink_pages[n]
          : span.window_pages[(seen.first_block + n - seen.sink_pages) % span.window_page_count];
  const PageShape shape = {args.shape.kv_heads, args.shape.head_dim,
                           is_sink ? args.sink_type : args.shape.type};
  return {page + shape.key_offset(kv_head), page + shape.value_offset(kv_head), shape.type};
}

// The keys of page n of `seen` that the tokens [begin, end) of a span see. If some token in between
// sees other rows than the first and the last do, these are a guess.
SINKSTREAM_INLINE Lines key_lines(const AttentionArgs& args, const AttentionSpan& span,
                                  const SeenPages& seen, int64_t n, int64_t kv_head, int64_t begin,
                                  int64_t end) {
  const HeadPage page = head_page(args, span, seen, n, kv_head);
  const int64_t first = seen_rows(args, span, seen, n, begin).begin;
  const int64_t last = seen_rows(args, span, seen, n, end - 1).end;
  if (first >= last) return {};
  const int64_t side = page.type == DType::kBFloat16 ? 2 : 1;  // dimensions side by side
  const int64_t column = side * bytes_of(page.type);
  return lines_of(page.keys, args.shape.head_dim / side, kPageRows * column, first * column,
                  last * column);
}

// A span's queries that read one key head are its pairs of token and head: pair p is head p % group
// of token p / group, with group = heads / kv_heads.
//
// Attends from the pairs [begin, end) to page n of `seen`, and calls
// take(pair, fold, sums) for each pair that sees a row of it. `next_keys`: see QueryTile.
template <typename Take>
SINKSTREAM_INLINE void visit_page(const AttentionArgs& args, const AttentionSpan& span,
                                  const SeenPages& seen, int64_t n, int64_t kv_head, int64_t begin,
                                  int64_t end, const Lines& next_keys, const Take& take) {
  const int64_t head_dim = args.shape.head_dim;
  const int64_t group = args.heads / args.shape.kv_heads;
  const bool is_sink = n < seen.sink_pages;
  const float* queries = is_sink ? args.query_sink : args.query_window;
  const HeadPage page = head_page(args, span, seen, n, kv_head);
  const Scoring scoring = {args.scale, args.soft_cap, args.slopes != nullptr};

  QueryTile tile;
  tile.next_keys = &next_keys;
  TileResult result;
  int64_t pairs[kMostRows];
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t token = pair / group;
    const Rows rows = seen_rows(args, span, seen, n, token);
    if (rows.begin < rows.end) {
      const int64_t head = kv_head * group + pair % group;
      tile.queries[tile.count] = queries + ((span.row + token) * args.heads + head) * head_dim;
      tile.begin[tile.count] = rows.begin;
      tile.end[tile.count] = rows.end;
      if (args.slopes != nullptr) {
        const int64_t position = is_sink ? args.rank[span.row + token] : span.index + token;
        tile.slope[tile.count] = args.slopes[head];
        tile.distance[tile.count] = static_cast<float>(position - first_row_of(span, seen, n));
      }
      pairs[tile.count++] = pair;
    }
    if (tile.count == kMostRows || (pair + 1 == end && tile.count > 0)) {
      with_cache_type(page.type, [&]<typename T>(T*) {
        attend_page(reinterpret_cast<const T*>(page.keys), reinterpret_cast<const T*>(page.values),
                    head_dim, scoring, tile, result);
      });
      for (int q = 0; q < tile.count; ++q) {
        take(pairs[q], Fold{result.largest[q], result.total[q]}, result.sums[q]);
      }
      tile.count = 0;
      tile.next_keys = nullptr;
    }
  }
}

SINKSTREAM_INLINE float* output(const AttentionArgs& args, const AttentionSpan& span,
                                int64_t kv_head, int64_t pair) {
  const int64_t group = args.heads / args.shape.kv_heads;
  const int64_t head = kv_head * group + pair % group;
  return args.out + ((span.row + pair / group) * args.heads + head) * args.shape.head_dim;
}

// Pairs of a task that folds as it goes: their sums and a page of one head fit in 32 KiB.
constexpr int64_t kTaskPairs = 24;

void attend_by_query(const AttentionArgs& args, const Launch& launch) {
  const int64_t kv_heads = args.shape.kv_heads;
  const int64_t head_dim = args.shape.head_dim;
  const int64_t group = args.heads / kv_heads;
  const int64_t vectors = vectors_of(head_dim);
  const auto tasks_of = [&](const AttentionSpan& span) {
    return divide_up(span.count * group, kTaskPairs) * kv_heads;
  };
  int64_t tasks = 0;
  for (int64_t s = 0; s < args.span_count; ++s) tasks += tasks_of(args.spans[s]);

  // A task's pairs of one span, and what they see.
  struct Share {
    const AttentionSpan& span;
    int64_t kv_head;
    int64_t begin, end;                // pairs
    int64_t first_token, after_token;  // of the span
    SeenPages seen;
  };
  const auto share_of = [&](int64_t task) -> Share {
    const AttentionSpan* span = args.spans;
    for (; task >= tasks_of(*span); ++span) task -= tasks_of(*span);
    const int64_t begin = task / kv_heads * kTaskPairs;
    const int64_t pairs = span->count * group;
    const int64_t end = begin + kTaskPairs < pairs ? begin + kTaskPairs : pairs;
    const int64_t first = begin / group;
    const int64_t after = (end - 1) / group + 1;
    return {
        *span, task % kv_heads, begin, end, first, after, seen_pages(args, *span, first, after)};
  };
  const auto keys_of = [&](const Share& share, int64_t n) {
    return key_lines(args, share.span, share.seen, n, share.kv_head, share.first_token,
                     share.after_token);
  };
  launch.pool->run(tasks, [&](int64_t task, int thread) {
    const Share share = share_of(task);
    const int64_t count = share.end - share.begin;
    Fold folds[kTaskPairs];
    float* sums = reinterpret_cast<float*>(args.scratch) + thread * kTaskPairs * (head_dim + 16);
    for (int64_t i = 0; i < count; ++i) clear(folds[i], sums + i * vectors * kLanes, vectors);
    for (int64_t n = 0; n < share.seen.count(); ++n) {
      const bool is_last = n + 1 == share.seen.count();
      const int64_t next = task + 1 < tasks ? task + 1 : task;  // this thread's next one, mostly
      visit_page(args, share.span, share.seen, n, share.kv_head, share.begin, share.end,
                 is_last ? keys_of(share_of(next), 0) : keys_of(share, n + 1),
                 [&](int64_t pair, const Fold& fold, const float* page_sums) {
                   const int64_t i = pair - share.begin;
                   join(folds[i], sums + i * vectors * kLanes, fold, page_sums, vectors);
                 });
    }
    for (int64_t i = 0; i < count; ++i) {
      if (args.sink_logits != nullptr) {
        const float logit = args.sink_logits[share.kv_head * group + (share.begin + i) % group];
        join_logit(folds[i], sums + i * vectors * kLanes, logit, vectors);
      }
      finish(folds[i], sums + i * vectors * kLanes, head_dim,
             output(args, share.span, share.kv_head, share.begin + i));
    }
  });
}

void attend_by_page(const AttentionArgs& args, const Launch& launch) {
  const int64_t kv_heads = args.shape.kv_heads;
  const int64_t head_dim = args.shape.head_dim;
  const int64_t group = args.heads / kv_heads;
  const int64_t vectors = vectors_of(head_dim);

  SeenPages seen[kSplitRows];
  int64_t pages = 0;  // of all spans
  int64_t most = 0;   // of one span
  for (int64_t s = 0; s < args.span_count; ++s) {
    seen[s] = seen_pages(args, args.spans[s], 0, args.spans[s].count);
    pages += seen[s].count();
    most = seen[s].count() > most ? seen[s].count() : most;
  }
  // Partial results: [rows][heads][most] of sums, then m and l.
  const int64_t partial_floats = vectors * kLanes + 2;
  float* partials = reinterpret_cast<float*>(args.scratch);
  const auto partial = [&](int64_t row, int64_t head, int64_t n) {
    return partials + ((row * args.heads + head) * most + n) * partial_floats;
  };

  // Which span a task belongs to, and which of its pages.
  struct Place {
    int64_t span;
    int64_t page;
  };
  const auto place_of = [&](int64_t task) {
    Place place = {0, task / kv_heads};
    for (; place.page >= seen[place.span].count(); ++place.span) {
      place.page -= seen[place.span].count();
    }
    return place;
  };
  const int64_t tasks = pages * kv_heads;
  launch.pool->run(tasks, [&](int64_t task, int) {
    const auto [s, n] = place_of(task);
    const int64_t kv_head = task % kv_heads;
    const int64_t next = task + 1 < tasks ? task + 1 : task;  // this thread's next one, mostly
    const auto [next_s, next_n] = place_of(next);
    const AttentionSpan& span = args.spans[s];
    const AttentionSpan& next_span = args.spans[next_s];
    visit_page(
        args, span, seen[s], n, kv_head, 0, span.count * group,
        key_lines(args, next_span, seen[next_s], next_n, next % kv_heads, 0, next_span.count),
        [&](int64_t pair, const Fold& fold, const float* sums) {
          float* to = partial(span.row + pair / group, kv_head * group + pair % group, n);
          for (int64_t v = 0; v < vectors; ++v) {
            store(to + v * kLanes, load(sums + v * kLanes));
          }
          to[vectors * kLanes] = fold.largest;
          to[vectors * kLanes + 1] = fold.total;
        });
  });

  launch.pool->run(args.rows * args.heads, [&](int64_t task, int) {
    const int64_t row = task / args.heads;
    const int64_t head = task % args.heads;
    int64_t s = 0;
    while (row < args.spans[s].row || row >= args.spans[s].row + args.spans[s].count) ++s;
    const AttentionSpan& span = args.spans[s];
    Fold fold;
    alignas(64) float sums[kMostSums];
    clear(fold, sums, vectors);
    for (int64_t n = 0; n < seen[s].count(); ++n) {
      const Rows rows = seen_rows(args, span, seen[s], n, row - span.row);
      if (rows.begin >= rows.end) continue;
      const float* from = partial(row, head, n);
      join(fold, sums, {from[vectors * kLanes], from[vectors * kLanes + 1]}, from, vectors);
    }
    if (args.sink_logits != nullptr) join_logit(fold, sums, args.sink_logits[head], vectors);
    finish(fold, sums, head_dim, args.out + (row * args.heads + head) * head_dim);
  });
}

// Whether some query's pages are worth a second loop over threads, and have room in the scratch.
SINKSTREAM_INLINE bool is_split_over_pages(const AttentionArgs& args, const Launch& launch) {
  if (args.rows > kSplitRows || launch.pool->threads() == 1) return false;
  int64_t most = 0;
  for (int64_t s = 0; s < args.span_count; ++s) {
    const AttentionSpan& span = args.spans[s];
    const int64_t pages = seen_pages(args, span, 0, span.count).count();
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
