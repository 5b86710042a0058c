// The rows of one forward pass, as the layers of one cache group with one rotary scheme read them:
// positions, angles, and which rows attend to which pages.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "model/forward_plan.h"
#include "model/layer_views.h"

namespace sinkstream {

// The rows of a round that attend. In the last layer not all do, so they are counted again.
struct RoundQueries {
  int64_t row = 0;
  int64_t count = 0;
  size_t span = 0;  // the first of its entries in LayerRows::spans
  size_t spans = 0;
};

struct LayerRows {
  LayerViews::View view;
  int64_t pairs = 0;  // rotary_dim / 2

  std::vector<int64_t> rank, first;                // [queries]
  float *sink_cos = nullptr, *sink_sin = nullptr;  // [queries, pairs], of each query's rank
  std::vector<RoundQueries> round_queries;         // of each round
  std::vector<AttentionSpan> spans;                // rows relative to their round's first query
  std::vector<const SequenceCache*> caches;        // of `spans`

  void reserve(int64_t rows);
  // Every row attends.
  void keep_all(const ForwardPlan& plan);
  // Only the rows whose logits are wanted attend: the last layer's other rows need only their keys
  // and values. What is here of the kept rows moves up, and `move(from, to, count)` moves what
  // else belongs to them. Returns their number.
  template <typename Move>
  int64_t drop_unused_rows(const ForwardPlan& plan, const Move& move);
};

// Moves `count` rows of `width` numbers up within one array, or to another.
template <typename T>
void move_rows(const T* input, int64_t from, T* out, int64_t to, int64_t count, int64_t width) {
  std::memmove(out + to * width, input + from * width,
               static_cast<size_t>(count * width) * sizeof(T));
}

template <typename Move>
int64_t LayerRows::drop_unused_rows(const ForwardPlan& plan, const Move& move) {
  const ForwardPlan::Group& its_plan = plan.groups[static_cast<size_t>(view.group)];
  int64_t kept = 0;
  size_t kept_spans = 0;
  for (size_t r = 0; r < its_plan.rounds.size(); ++r) {
    const ForwardPlan::Round& round = its_plan.rounds[r];
    RoundQueries& queries = round_queries[r];
    queries.row = kept;
    queries.span = kept_spans;
    for (size_t i = round.piece; i < round.piece + round.count; ++i) {
      const ForwardPlan::Piece& piece = its_plan.pieces[i];
      if (piece.wanted == 0) continue;
      const int64_t dropped = piece.count - piece.wanted, row = piece.row + dropped;
      AttentionSpan span = spans[i];
      span.row = kept - queries.row;
      span.count = piece.wanted;
      span.index = piece.index + dropped;
      spans[kept_spans] = span;
      caches[kept_spans++] = piece.cache;
      move_rows(sink_cos, row, sink_cos, kept, piece.wanted, pairs);
      move_rows(sink_sin, row, sink_sin, kept, piece.wanted, pairs);
      move_rows(first.data(), row, first.data(), kept, piece.wanted, 1);
      move_rows(rank.data(), row, rank.data(), kept, piece.wanted, 1);
      move(row, kept, piece.wanted);
      kept += piece.wanted;
    }
    queries.count = kept - queries.row;
    queries.spans = kept_spans - queries.span;
  }
  return kept;
}

}  // namespace sinkstream
