#include "model/forward_plan.h"

#include <algorithm>

#include "common/check.h"

namespace sinkstream {

namespace {

// How many of a span's last rows want logits.
int64_t wanted_of(const ForwardSpan& span) {
  switch (span.logits) {
    case LogitsOf::kNone: return 0;
    case LogitsOf::kLast: return 1;
    case LogitsOf::kAll: return span.count;
  }
  return 0;
}

}  // namespace

ForwardPlan::ForwardPlan(int64_t max_rows, int64_t scratch_pages, int64_t group_count)
    : groups(static_cast<size_t>(group_count)), scratch_pages_(scratch_pages) {
  ids.reserve(max_rows);
  index.reserve(max_rows);
  spans.reserve(max_rows);
  for (Group& group : groups) {
    group.rank.reserve(max_rows);
    group.first.reserve(max_rows);
    group.pieces.reserve(max_rows);
    group.rounds.reserve(max_rows);
  }
}

void ForwardPlan::make(std::span<const ForwardSpan> spans) {
  ids.clear();
  index.clear();
  this->spans.clear();
  wanted = 0;
  for (Group& group : groups) {
    group.rank.clear();
    group.first.clear();
    group.pieces.clear();
    group.rounds.clear();
    group.is_joinable = false;
  }
  for (const ForwardSpan& span : spans) {
    SINKSTREAM_CHECK(span.count >= 1, "a span has ", span.count, " tokens");
    SINKSTREAM_CHECK(span.cache->group_count() == std::ssize(groups), "a cache has ",
                     span.cache->group_count(), " groups of layers, but the model has ",
                     groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      cut(span, span.cache->group(static_cast<int64_t>(g)), &groups[g]);
    }
    this->spans.push_back({.cache = span.cache,
                           .row = rows(),
                           .index = span.cache->length() + span.in_flight,
                           .count = span.count,
                           .wanted = wanted_of(span)});
    add_rows(span);
    wanted += wanted_of(span);
  }
}

// Lists what each row is: its token and index, and in each group its rank and oldest visible window
// token.
void ForwardPlan::add_rows(const ForwardSpan& span) {
  const int64_t begin = span.cache->length() + span.in_flight;
  for (int64_t i = 0; i < span.count; ++i) {
    ids.push_back(span.tokens[i]);
    index.push_back(begin + i);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const Window& window = span.cache->group(static_cast<int64_t>(g)).window;
    for (int64_t t = begin; t < begin + span.count; ++t) {
      groups[g].rank.push_back(window.rank(t));
      groups[g].first.push_back(window.first(t));
    }
  }
}

// Cuts a span into rounds. Consecutive spans of one piece share a round while there are scratch
// pages for all of them, so that a step of many decoding sequences is one call. A longer span has a
// round for each piece.
void ForwardPlan::cut(const ForwardSpan& span, const GroupPages& pages, Group* group) const {
  const SequenceCache& cache = *span.cache;
  const int64_t begin = cache.length() + span.in_flight, end = begin + span.count;
  const int64_t more = span.drafts > 0 ? 0 : scratch_pages_;  // blocks: Note [Scratch pages]
  for (int64_t t = begin; t < end;) {
    const int64_t row = rows() + t - begin;
    const int64_t count = pages.window.piece(t, end - t, more);
    const bool is_whole = count == span.count;
    const int64_t wanted_here = std::clamp<int64_t>(wanted_of(span) - (end - t - count), 0, count);
    add({.cache = &cache,
         .pages = &pages,
         .row = row,
         .index = t,
         .count = count,
         .wanted = wanted_here},
        group->is_joinable && is_whole, group);
    group->is_joinable = is_whole;
    t += count;
  }
}

// Adds a piece: to the last round if it may join it and there are scratch pages for it, else to a
// new one.
void ForwardPlan::add(Piece piece, bool joins, Group* group) const {
  const Window& window = piece.pages->window;
  const int64_t last = piece.index + piece.count - 1;
  piece.scratch_block = window.ring_end(piece.index, piece.pages->window_page_count);
  if (!window.is_sink(last)) {
    piece.scratch_pages = std::max<int64_t>(window.block(last) + 1 - piece.scratch_block, 0);
  }
  if (!joins || group->scratch_used + piece.scratch_pages > scratch_pages_) {
    group->rounds.push_back({.row = piece.row, .piece = group->pieces.size()});
    group->scratch_used = 0;
  }
  piece.scratch_page = group->scratch_used;
  group->scratch_used += piece.scratch_pages;
  group->rounds.back().rows += piece.count;
  group->rounds.back().count += 1;
  group->pieces.push_back(piece);
}

}  // namespace sinkstream
