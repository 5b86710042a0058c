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

ForwardPlan::ForwardPlan(int64_t max_rows, int64_t scratch_pages) : scratch_pages_(scratch_pages) {
  ids.reserve(max_rows);
  index.reserve(max_rows);
  rank.reserve(max_rows);
  first.reserve(max_rows);
  pieces.reserve(max_rows);
  rounds.reserve(max_rows);
}

void ForwardPlan::make(std::span<const ForwardSpan> spans) {
  ids.clear();
  index.clear();
  rank.clear();
  first.clear();
  pieces.clear();
  rounds.clear();
  wanted = 0;
  bool joinable = false;
  for (const ForwardSpan& span : spans) {
    SINKSTREAM_CHECK(span.count >= 1, "a span has ", span.count, " tokens");
    cut(span, &joinable);
    add_rows(span);
    wanted += wanted_of(span);
  }
}

// Lists what each row is: its token, index, rank and oldest visible window token.
void ForwardPlan::add_rows(const ForwardSpan& span) {
  const SequenceCache& cache = *span.cache;
  for (int64_t i = 0; i < span.count; ++i) {
    const int64_t t = cache.length() + span.in_flight + i;
    ids.push_back(span.tokens[i]);
    index.push_back(t);
    rank.push_back(cache.window().rank(t));
    first.push_back(cache.window().first(t));
  }
}

// Cuts a span into rounds. Consecutive spans of one piece share a round while there are scratch
// pages for all of them, so that a step of many decoding sequences is one call. A longer span has a
// round for each piece.
void ForwardPlan::cut(const ForwardSpan& span, bool* joinable) {
  const SequenceCache& cache = *span.cache;
  const int64_t begin = cache.length() + span.in_flight, end = begin + span.count;
  for (int64_t t = begin; t < end;) {
    const int64_t row = rows() + t - begin;
    const int64_t count = cache.window().piece(t, end - t, scratch_pages_);
    const bool is_whole = count == span.count;
    const int64_t wanted_here = std::clamp<int64_t>(wanted_of(span) - (end - t - count), 0, count);
    add({.cache = &cache, .row = row, .index = t, .count = count, .wanted = wanted_here},
        *joinable && is_whole);
    *joinable = is_whole;
    t += count;
  }
}

// Adds a piece: to the last round if it may join it and there are scratch pages for it, else to a
// new one.
void ForwardPlan::add(Piece piece, bool joins) {
  const Window& window = piece.cache->window();
  const int64_t last = piece.index + piece.count - 1;
  piece.scratch_block = window.ring_end(piece.index, piece.cache->window_page_count());
  if (!window.is_sink(last)) {
    piece.scratch_pages = std::max<int64_t>(window.block(last) + 1 - piece.scratch_block, 0);
  }
  if (!joins || scratch_used_ + piece.scratch_pages > scratch_pages_) {
    rounds.push_back({.row = piece.row, .piece = pieces.size()});
    scratch_used_ = 0;
  }
  piece.scratch_page = scratch_used_;
  scratch_used_ += piece.scratch_pages;
  rounds.back().rows += piece.count;
  rounds.back().count += 1;
  pieces.push_back(piece);
}

}  // namespace sinkstream
