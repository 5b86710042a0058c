// What the rows of one forward are, and in which rounds their keys are written and their queries
// run. Computes no number of a model; the decoders of processor and GPU read the same plan.
//
// Note: [Scratch pages]
// A ring has room for one block more than is live, so of a long span only a piece can be written
// before queries run: Window::piece. A GPU has too little to do with 64 rows. It has a few pages
// beside all rings, in its scratch memory: blocks of a piece whose pages in the ring still hold
// keys that are seen are written there, and queries read them there. Once a layer's queries have
// run, those that stay in the ring are copied to their pages, and the next layer uses the same
// scratch pages. A piece has as many blocks as there are scratch pages for, so that with enough of
// them a whole chunk is one; and no result depends on how many there are.
//
// They are copied whole, to pages that are the sequence's own: SequenceCache::make_writable. Rows
// behind the piece's end hold nothing then, and nothing that is live was lost there: in the ring
// they held tokens of the block a whole ring before the last one, of which already that block's
// first token sees nothing. No cut brings back what has left the window, nor can a cache be rewound
// to where it was seen or forked there.
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
    int64_t row = 0;
    int64_t index = 0;  // of its first token
    int64_t count = 0;
    int64_t wanted = 0;  // of its last rows, whose logits are wanted
    // Its blocks from `scratch_block` on have scratch pages: so many, from `scratch_page` on.
    int64_t scratch_block = 0;
    int64_t scratch_page = 0;
    int64_t scratch_pages = 0;

    // Of those blocks, the last ones stay in the ring.
    int64_t end_block() const { return scratch_block + scratch_pages; }
    int64_t kept_block() const {
      return std::max(scratch_block, end_block() - cache->window_page_count());
    }
  };

  // Pieces of different sequences that are computed together; no two have the same scratch page.
  struct Round {
    int64_t row = 0;
    int64_t rows = 0;
    size_t piece = 0;  // the first of its entries in `pieces`
    size_t count = 0;
  };

  // So many that no step of `rows` rows in up to `spans` spans is cut: of c rows of a span, one at
  // least lies in the block that it begins in, which the ring has a page for, so that it needs
  // (c + 62) / 64 at most.
  static constexpr int64_t most_scratch_pages(int64_t rows, int64_t spans) {
    return (rows + (kPageRows - 2) * spans) / kPageRows;
  }

  // Room for so many rows is taken at once. `scratch_pages`: that a round may use.
  explicit ForwardPlan(int64_t max_rows, int64_t scratch_pages = 0);
  void make(std::span<const ForwardSpan> spans);

  int64_t rows() const { return static_cast<int64_t>(ids.size()); }

  std::vector<int32_t> ids;    // [rows]
  std::vector<int64_t> index;  // [rows]
  std::vector<int64_t> rank;   // [rows], positions of the queries towards the sinks
  std::vector<int64_t> first;  // [rows], the oldest window token that each sees
  std::vector<Piece> pieces;
  std::vector<Round> rounds;
  int64_t wanted = 0;  // rows whose logits are wanted

 private:
  void add_rows(const ForwardSpan& span);
  void cut(const ForwardSpan& span, bool* joinable);
  void add(Piece piece, bool joins);

  int64_t scratch_pages_;
  int64_t scratch_used_ = 0;  // of the last round
};

}  // namespace sinkstream
