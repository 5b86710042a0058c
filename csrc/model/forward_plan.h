// What the rows of one forward are, and in which rounds their keys are written and their queries
// run. Computes no number of a model; the decoders of processor and card read the same plan.
#pragma once

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
  };

  // Pieces of different sequences that are computed together.
  struct Round {
    int64_t row = 0;
    int64_t rows = 0;
    size_t piece = 0;  // the first of its entries in `pieces`
    size_t count = 0;
  };

  // Room for so many rows is taken at once.
  explicit ForwardPlan(int64_t max_rows);
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
  void place(const ForwardSpan& span);
  void cut(const ForwardSpan& span, bool* joinable);
};

}  // namespace sinkstream
