// The arithmetic of sinks and window: which keys a token sees, at which position, in which slot.
// Pure arithmetic; touches no memory. The terms are defined in docs/glossary.md.
//
// Note: [Two queries]
// By definition (StreamingLLM, section 3.2), the position of a key is its rank among the live
// tokens: sink j has j, window token i has S + i − first, and the query of token t has rank(t).
// Rotary scores depend only on differences of positions. Between query and window key the
// difference is rank(t) − (S + i − first) = t − i, so both can be rotated by their own index, and
// no key ever has to move. Between query and sink it is rank(t) − j, so against sinks the query is
// rotated by its rank instead. That is two rotations of each query, one of each key, and one
// softmax.
//
// Note: [Rejected drafts]
// Tokens that do not stay have overwritten rows of the ring. In a ring of P = ceil(W / 64) + 1
// pages, token j overwrites the row of token j − 64 P, which is at most j − W − 64. After a return
// to length L, the next queries see tokens from L − W + 1 on. So up to 64 tokens from L on may be
// written and dropped, and no live row is lost: kMostRejected, without a page more.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/divide_up.h"
#include "kernels/page.h"

namespace sinkstream {

// Look-ahead tokens, in [1, kPageRows]: a step may write this many after the next token, and none
// of them need stay (Note [One step ahead] of model/step_runner.h).
inline constexpr int64_t kLookAhead = 1;

inline constexpr int64_t kMostRejected = kPageRows;

struct Window {
  int64_t sinks = 0;   // S >= 0: the first S tokens, which are never evicted
  int64_t window = 1;  // W >= 1: the last W tokens, the current one included
  int64_t begin = 0;   // window tokens before this index were evicted early; 0: none were

  // The maximum number of keys that a query sees.
  int64_t capacity() const { return sinks + window; }

  // The oldest window token that the query of token t sees; above t if there is none.
  int64_t first(int64_t t) const { return std::max({sinks, begin, t - window + 1}); }

  // The position of the query of token t: its rank among the live tokens.
  int64_t rank(int64_t t) const { return t < sinks ? t : sinks + t - first(t); }

  // Tokens that are live after `length` tokens have been appended.
  int64_t live(int64_t length) const { return length == 0 ? 0 : rank(length - 1) + 1; }

  // Tokens that have left the cache after `length` tokens have been appended.
  int64_t evicted(int64_t length) const { return length - live(length); }

  bool is_sink(int64_t t) const { return t < sinks; }

  // The block of 64 that window token i >= S lies in, and its row there. Blocks are aligned to the
  // index, so that sums over a block have the same terms regardless of what else is cached.
  int64_t block(int64_t i) const { return (i - sinks) / kPageRows; }
  int64_t row(int64_t i) const { return (i - sinks) % kPageRows; }

  // The first token after `i` that is in another page.
  int64_t page_end(int64_t i) const {
    if (is_sink(i)) return std::min((i / kPageRows + 1) * kPageRows, sinks);
    return sinks + (block(i) + 1) * kPageRows;
  }

  // Pages of a ring that holds every live window token and the look-ahead tokens: W + k tokens
  // never touch more blocks, wherever the block boundaries fall. So what is discarded has
  // overwritten no live key, and a block that is being written has a page.
  int64_t window_pages(int64_t look_ahead = kLookAhead) const {
    return divide_up(window + look_ahead - 1, kPageRows) + 1;
  }
  int64_t sink_pages() const { return divide_up(sinks, kPageRows); }

  // The same for a sequence that will never be longer than `length` tokens.
  int64_t window_pages_for(int64_t length) const {
    const int64_t tokens = std::max<int64_t>(length - sinks, 1);
    return std::min(window_pages(), divide_up(tokens, kPageRows));
  }

  // The maximum number of pages of a layer that a sequence of this capacity needs, however it is
  // divided into sinks and window.
  int64_t most_pages(int64_t look_ahead = kLookAhead) const {
    if (capacity() == 1) return window_pages(look_ahead);
    return (capacity() + look_ahead - 3) / kPageRows + 3;
  }

  // How many of `count` tokens from index t on may be written before their queries run. Up to the
  // end of the block of the last sink or of token t, because the ring has room for one more block
  // than is live; plus `more` blocks, which have pages elsewhere.
  int64_t piece(int64_t t, int64_t count, int64_t more = 0) const {
    const int64_t blocks = block(std::max(t, sinks)) + 1 + more;
    return std::min(count, sinks + blocks * kPageRows - t);
  }

  // The first block whose page, in a ring of `pages` pages, still holds keys that token t or a
  // later one may see.
  int64_t ring_end(int64_t t, int64_t pages) const { return block(first(t)) + pages; }
};

}  // namespace sinkstream
