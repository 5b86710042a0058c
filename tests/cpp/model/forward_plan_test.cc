#include "model/forward_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace sinkstream {
namespace {

constexpr int64_t kEndless = int64_t{1} << 60;

// A cache of one layer and `length` tokens.
struct Sequence {
  Sequence(const Window& window, int64_t length, int64_t max_length = kEndless)
      : pool({1, 16, DType::kFloat16}, SequenceCache::memory_needed(window, 1, max_length).pages[0],
             false),
        cache(&pool, window, 1, max_length) {
    cache.advance(length);
  }

  PagePool pool;
  SequenceCache cache;
};

const std::vector<int32_t> kTokens(1000, 1);

ForwardSpan span_of(const Sequence& sequence, int64_t count, LogitsOf logits = LogitsOf::kNone) {
  return {const_cast<SequenceCache*>(&sequence.cache), kTokens.data(), count, logits};
}

using Scratch = std::tuple<int64_t, int64_t, int64_t>;

// Of each piece: rows, scratch pages, and the first scratch page.
std::vector<Scratch> pieces_of(const ForwardPlan& plan) {
  std::vector<Scratch> pieces;
  for (const ForwardPlan::Piece& piece : plan.groups[0].pieces) {
    pieces.emplace_back(piece.count, piece.scratch_pages, piece.scratch_page);
  }
  return pieces;
}

// With 4 sinks and a window of 100, token 200 is row 4 of block 3. Token 101, the oldest that it
// sees, is in block 1. In a ring of three pages the next page holds block 1, so none is free.
TEST(ForwardPlan, WithoutScratchPagesAPieceEndsWithItsBlock) {
  const Sequence sequence({4, 100}, 200);
  ForwardPlan plan(400);
  const ForwardSpan span = span_of(sequence, 200, LogitsOf::kAll);
  plan.make({&span, 1});
  EXPECT_EQ(pieces_of(plan),
            (std::vector<Scratch>{{60, 0, 0}, {64, 0, 0}, {64, 0, 0}, {12, 0, 0}}));
  EXPECT_EQ(plan.groups[0].rounds.size(), 4u);
  for (const ForwardPlan::Piece& piece : plan.groups[0].pieces)
    EXPECT_EQ(piece.wanted, piece.count);
}

TEST(ForwardPlan, WithEnoughScratchPagesASpanIsOnePiece) {
  const Sequence sequence({4, 100}, 200);
  ForwardPlan plan(400, 3);
  const ForwardSpan span = span_of(sequence, 200, LogitsOf::kLast);
  plan.make({&span, 1});
  EXPECT_EQ(pieces_of(plan), (std::vector<Scratch>{{200, 3, 0}}));
  EXPECT_EQ(plan.groups[0].rounds.size(), 1u);
  EXPECT_EQ(plan.groups[0].pieces[0].scratch_block, 4);
  EXPECT_EQ(plan.groups[0].pieces[0].kept_block(),
            4);  // a ring of three keeps all of blocks 4 to 6
  EXPECT_EQ(plan.groups[0].pieces[0].end_block(), 7);
  EXPECT_EQ(plan.groups[0].pieces[0].wanted, 1);
}

TEST(ForwardPlan, APieceHasAsManyBlocksAsThereAreScratchPages) {
  const Sequence sequence({4, 100}, 200);
  ForwardPlan plan(400, 1);
  const ForwardSpan span = span_of(sequence, 200);
  plan.make({&span, 1});
  EXPECT_EQ(pieces_of(plan), (std::vector<Scratch>{{124, 1, 0}, {76, 1, 0}}));
  EXPECT_EQ(plan.groups[0].rounds.size(), 2u);
}

TEST(ForwardPlan, KeepsOfALongPieceWhatTheRingHolds) {
  const Sequence sequence({0, 1}, 130);
  ForwardPlan plan(700, 20);
  const ForwardSpan span = span_of(sequence, 640);
  plan.make({&span, 1});
  EXPECT_EQ(plan.groups[0].pieces[0].scratch_block, 4);  // 2 and 3 are in the ring
  EXPECT_EQ(plan.groups[0].pieces[0].end_block(), 13);
  EXPECT_EQ(plan.groups[0].pieces[0].kept_block(), 11);
}

// No visible token has to make room: at the start of a stream, and after a cut.
TEST(ForwardPlan, WritesToTheRingItselfWhereItHasRoom) {
  ForwardPlan plan(1000, 20);
  const Sequence fresh({4, 600}, 0), short_one({4, 600}, 100, 900);
  for (const auto& [sequence, count] : {std::pair{&fresh, 604}, {&short_one, 600}}) {
    const ForwardSpan span = span_of(*sequence, count);
    plan.make({&span, 1});
    EXPECT_EQ(pieces_of(plan), (std::vector<Scratch>{{count, 0, 0}}));
  }
  Sequence cut({4, 600}, 5000);
  cut.cache.cut(5000);
  const ForwardSpan span = span_of(cut, 600);
  plan.make({&span, 1});
  EXPECT_EQ(pieces_of(plan), (std::vector<Scratch>{{600, 0, 0}}));
}

TEST(ForwardPlan, PiecesShareARoundWhileThereAreScratchPagesForThem) {
  const Sequence a({4, 100}, 200), b({4, 100}, 200), c({0, 64}, 500), d({4, 100}, 0),
      e({0, 64}, 500);
  ForwardPlan plan(1000, 3);
  const std::vector<ForwardSpan> spans = {span_of(a, 70), span_of(c, 1), span_of(b, 200),
                                          span_of(d, 1), span_of(e, 64)};
  plan.make(spans);
  EXPECT_EQ(pieces_of(plan),
            (std::vector<Scratch>{{70, 1, 0}, {1, 0, 1}, {200, 3, 0}, {1, 0, 3}, {64, 1, 0}}));
  ASSERT_EQ(plan.groups[0].rounds.size(), 3u);
  EXPECT_EQ(plan.groups[0].rounds[0].rows, 71);
  EXPECT_EQ(plan.groups[0].rounds[1].rows, 201);
  EXPECT_EQ(plan.groups[0].rounds[2].row, 272);
  EXPECT_EQ(plan.groups[0].rounds[2].count, 1u);
}

// While the queries of a round run, every block that they see has a page of its own. What is live
// afterwards is in the ring, with nothing copied over it.
void expect_own_pages(const ForwardPlan& plan, const ForwardPlan::Round& round,
                      int64_t scratch_pages) {
  std::set<int64_t> scratch;
  for (size_t p = round.piece; p < round.piece + round.count; ++p) {
    const ForwardPlan::Piece& piece = plan.groups[0].pieces[p];
    const Window& window = piece.cache->window();
    const int64_t ring = piece.pages->window_page_count;
    for (int64_t i = 0; i < piece.scratch_pages; ++i) {
      EXPECT_TRUE(scratch.insert(piece.scratch_page + i).second);
      EXPECT_LT(piece.scratch_page + i, scratch_pages);
    }
    const int64_t last = piece.index + piece.count - 1;
    if (window.is_sink(last)) continue;
    const int64_t scratch_begin = piece.scratch_pages > 0 ? piece.scratch_block : kEndless;
    std::vector<int64_t> at(ring, -1);  // the block that each page of the ring holds
    for (int64_t b = window.block(window.first(piece.index)); b <= window.block(last); ++b) {
      if (b >= scratch_begin) {
        EXPECT_LT(b, piece.end_block());
        continue;
      }
      EXPECT_EQ(at[b % ring], -1) << "two visible blocks share a page";
      at[b % ring] = b;
    }
    if (piece.scratch_pages > 0) {
      for (int64_t b = piece.kept_block(); b < piece.end_block(); ++b) at[b % ring] = b;
    }
    // What a fork at this moment counts as live: all that the last query saw.
    for (int64_t i = window.first(last); i <= last; i = window.page_end(i)) {
      EXPECT_EQ(at[window.block(i) % ring], window.block(i));
    }
  }
}

TEST(ForwardPlan, NoPageIsWrittenThatIsSeen) {
  std::mt19937 random(1);
  const auto below = [&random](int64_t bound) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
  };
  for (int trial = 0; trial < 3000; ++trial) {
    SCOPED_TRACE(trial);
    const int64_t scratch_pages = below(8);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<ForwardSpan> spans;
    int64_t rows = 0;
    for (int64_t i = 0; i <= below(5); ++i) {
      const Window window{std::vector<int64_t>{0, 1, 4, 64, 70, 128}[below(6)], 1 + below(300)};
      const int64_t length = below(700), count = below(3) == 0 ? 1 : 1 + below(400);
      const int64_t max_length = below(3) == 0 ? length + count + 3 : kEndless;
      sequences.push_back(std::make_unique<Sequence>(window, length, max_length));
      SequenceCache& cache = sequences.back()->cache;
      if (below(4) == 0 && length > window.sinks) {
        cache.cut(window.first(length) + below(length - window.first(length) + 1));
      }
      if (below(3) == 0)
        cache.add_in_flight(std::min<int64_t>(below(3), max_length - length - count));
      spans.push_back(span_of(*sequences.back(), count));
      spans.back().in_flight = cache.in_flight();
      rows += count;
    }
    ForwardPlan plan(rows, scratch_pages);
    plan.make(spans);
    int64_t next_row = 0;
    size_t next_piece = 0;
    for (const ForwardPlan::Round& round : plan.groups[0].rounds) {
      EXPECT_EQ(round.row, next_row);
      EXPECT_EQ(round.piece, next_piece);
      expect_own_pages(plan, round, scratch_pages);
      next_row += round.rows;
      next_piece += round.count;
    }
    EXPECT_EQ(next_row, rows);
    EXPECT_EQ(next_piece, plan.groups[0].pieces.size());
  }
}

// The scratch pages of a decoder on a GPU: none of its steps is cut.
TEST(ForwardPlan, AStepOfAsManySpansAsWereCountedIsOneRound) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 500; ++trial) {
    const int64_t spans_count = 1 + random() % 6, most_rows = 64 + random() % 300;
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<ForwardSpan> spans;
    int64_t left = most_rows;
    for (int64_t i = spans_count; i > 0; --i) {
      const int64_t count = i == 1 ? left : 1 + random() % (left - i + 1);
      const Window window{static_cast<int64_t>(random() % 70),
                          1 + static_cast<int64_t>(random() % 200)};
      sequences.push_back(std::make_unique<Sequence>(window, random() % 1000));
      spans.push_back(span_of(*sequences.back(), count));
      left -= count;
    }
    ForwardPlan plan(most_rows, ForwardPlan::most_scratch_pages(most_rows, spans_count));
    plan.make(spans);
    EXPECT_EQ(plan.groups[0].rounds.size(), 1u);
    EXPECT_EQ(plan.groups[0].pieces.size(), spans.size());
  }
}

}  // namespace
}  // namespace sinkstream
