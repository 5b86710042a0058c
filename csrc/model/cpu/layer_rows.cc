#include "model/cpu/layer_rows.h"

namespace sinkstream {

void LayerRows::reserve(int64_t rows) {
  const auto count = static_cast<size_t>(rows);
  rank.reserve(count);
  first.reserve(count);
  round_queries.reserve(count);
  spans.reserve(count);
  caches.reserve(count);
}

void LayerRows::keep_all(const ForwardPlan& plan) {
  const ForwardPlan::Group& its_plan = plan.groups[static_cast<size_t>(view.group)];
  rank = its_plan.rank;
  first = its_plan.first;
  round_queries.clear();
  spans.clear();
  caches.clear();
  for (const ForwardPlan::Round& round : its_plan.rounds) {
    round_queries.push_back(
        {.row = round.row, .count = round.rows, .span = round.piece, .spans = round.count});
    for (size_t i = round.piece; i < round.piece + round.count; ++i) {
      const ForwardPlan::Piece& piece = its_plan.pieces[i];
      spans.push_back({.row = piece.row - round.row,
                       .count = piece.count,
                       .index = piece.index,
                       .sinks = piece.pages->window.sinks,
                       .window_page_count = piece.pages->window_page_count});
      caches.push_back(piece.cache);
    }
  }
}

}  // namespace sinkstream
