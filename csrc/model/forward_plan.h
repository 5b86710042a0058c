// The rows of one forward pass, and for each group of layers the rounds in which their keys are
// written and their queries run. Does none of the model's arithmetic; the CPU and GPU decoders read
// the same plan.
//
// Note: [Scratch pages]
// A ring has room for one more block than is live, so only a piece of a long span can be written
// before queries run (Window::piece). 64 rows are too little work for a GPU, so it has a few extra
// pages in its scratch memory: blocks of a piece whose pages in the ring still hold visible keys
// are written to scratch pages, and queries read them there. Once a layer's queries have run, the
// blocks that stay live are copied to their pages in the ring, and the next layer reuses the
// scratch pages. A piece has as many blocks as there are scratch pages for, so that with enough of
// them a chunk is one piece. No result depends on their number.
//
// Complete pages are copied, to pages that only this sequence holds (SequenceCache::make_writable).
// Rows after the piece's end then hold nothing. Nothing live is lost: in the ring they held tokens
// of the block one ring length before the last block, which no token of the last block sees. A cut
// never brings back what has left the window, and a cache cannot be rewound or forked to a point
// where those tokens were visible. A sequence whose drafts are rejected does go back to such a
// point (Note [Rejected drafts] of cache/window.h), so a span with drafts uses no scratch pages: it
// overwrites only the rows of its own tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/language_model.h"

namespace sinkstream {

struct ForwardPlan {
  // Rows of one sequence whose keys may all be written before any of their queries runs
  // (Window::piece).
  struct Piece {
    const SequenceCache* cache = nullptr;
    const GroupPages* pages = nullptr;  // of the group in that cache
    int64_t row = 0;
    int64_t index = 0;  // of its first token
    int64_t count = 0;
    int64_t wanted = 0;  // of its last rows, whose logits are wanted
    // Its blocks from `scratch_block` on have `scratch_pages` scratch pages, from `scratch_page`
    // on.
    int64_t scratch_block = 0;
    int64_t scratch_page = 0;
    int64_t scratch_pages = 0;

    // Of those blocks, the ones from kept_block() on stay in the ring.
    int64_t end_block() const { return scratch_block + scratch_pages; }
    int64_t kept_block() const {
      return std::max(scratch_block, end_block() - pages->window_page_count);
    }
  };

  // Pieces of different sequences that are computed together; no two share a scratch page.
  struct Round {
    int64_t row = 0;
    int64_t rows = 0;
    size_t piece = 0;  // the first of its entries in `pieces`
    size_t count = 0;
  };

  // What the layers of one group compute.
  struct Group {
    std::vector<int64_t> rank;   // [rows], the position of each query against the sinks
    std::vector<int64_t> first;  // [rows], the oldest window token that each sees
    std::vector<Piece> pieces;
    std::vector<Round> rounds;

    int64_t scratch_used = 0;  // of the last round
    bool is_joinable = false;  // whether another piece may share the last round
  };

  // Enough scratch pages that no step of `rows` rows in up to `spans` spans is cut. At least one of
  // a span's c rows is in the block that the span begins in, which has a page in the ring, so a
  // span needs at most (c + 62) / 64.
  static constexpr int64_t most_scratch_pages(int64_t rows, int64_t spans) {
    return (rows + (kPageRows - 2) * spans) / kPageRows;
  }

  // Allocates memory for `max_rows` and this many groups of layers up front. A round may use
  // `scratch_pages`.
  explicit ForwardPlan(int64_t max_rows, int64_t scratch_pages = 0, int64_t group_count = 1);
  void make(std::span<const ForwardSpan> spans);

  int64_t rows() const { return static_cast<int64_t>(ids.size()); }

  // All rows of one sequence, as layers with states read them.
  struct Span {
    const SequenceCache* cache = nullptr;
    int64_t row = 0;
    int64_t index = 0;  // of its first token
    int64_t count = 0;
    int64_t wanted = 0;  // of its last rows, whose logits are wanted
  };

  std::vector<int32_t> ids;    // [rows]
  std::vector<int64_t> index;  // [rows]
  int64_t wanted = 0;          // rows whose logits are wanted
  std::vector<Group> groups;
  std::vector<Span> spans;

 private:
  void add_rows(const ForwardSpan& span);
  void cut(const ForwardSpan& span, const GroupPages& pages, Group* group) const;
  void add(Piece piece, bool joins, Group* group) const;

  int64_t scratch_pages_;
};

}  // namespace sinkstream
