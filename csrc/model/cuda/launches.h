// Which launches a step on a GPU is made of, as plain data. All else that kernels need they read
// from the step's block (cuda/step.h), so one captured graph serves every step of the same calls.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/linear/plan.h"
#include "model/forward_plan.h"

namespace sinkstream {

// Wanted rows whose logits are computed together.
constexpr int64_t kLogitRows = cuda::kFewInputs;
// Rows up to which pages are shared out among blocks of threads: more keep a GPU busy without.
constexpr int64_t kMostSplitRows = 16;

struct StepLaunches {
  // Rows whose queries run together.
  struct Attention {
    int64_t row = 0;
    int64_t rows = 0;
    int64_t span_rows = 1;  // that follow each other in one sequence
    bool is_split = false;
  };

  // Blocks that stay in the ring and have been written to scratch pages.
  struct Copy {
    int32_t sequence = 0;  // of the step block
    int64_t block = 0;     // the first
    int64_t count = 0;
  };

  // Rows whose keys are written together; then their queries run, and then pages are copied.
  struct Round {
    int64_t row = 0;
    int64_t rows = 0;
    size_t attention = 0;  // the first of its entries in `attentions`
    size_t count = 0;
    size_t copy = 0;  // the first of its entries in `copies`
    size_t copy_count = 0;
  };

  // Rows that follow each other and whose logits are wanted.
  struct LogitRun {
    int64_t row = 0;
    int64_t rows = 0;
    int64_t to = 0;  // the first's place among the wanted rows of the step
  };

  // Room for so many rows is taken at once.
  explicit StepLaunches(int64_t max_rows);

  // Rows of any sequences, one token of each, all of which want one to be drawn.
  static StepLaunches of_bucket(int64_t rows);

  // Those of the plan; no row is wanted yet. Attention splits up to `split_pages` of a sequence.
  void begin(const ForwardPlan& plan, int64_t split_pages);
  // The logits of these rows are wanted, too.
  void add_logits(int64_t row, int64_t count);

  int64_t rows = 0;
  std::vector<Round> rounds;
  std::vector<Attention> attentions;
  std::vector<Copy> copies;
  std::vector<LogitRun> logit_runs;
  int64_t logit_rows = 0;  // rows whose logits are
  int64_t samples = 0;     // of those, the first ones, tokens are drawn; the others go to the host

 private:
  void add(const ForwardPlan& plan, const ForwardPlan::Round& round, int64_t split_pages);
};

}  // namespace sinkstream
