// Which kernels a step on a GPU launches, as plain data. Kernels read everything else from the
// step's block (cuda/step.h), so one captured graph serves every step with the same launches.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/linear/plan.h"
#include "model/forward_plan.h"

namespace sinkstream {

// The maximum number of rows whose logits are computed together.
constexpr int64_t kLogitRows = cuda::kFewInputs;

struct StepLaunches {
  // Rows whose attention is one launch.
  struct Attention {
    int64_t row = 0;
    int64_t rows = 0;
    int64_t span_rows = 1;  // consecutive tokens of one sequence
    bool is_split = false;  // whether its results for each page fit in scratch memory
  };

  // Blocks of scratch pages to copy to the ring.
  struct Copy {
    int32_t sequence = 0;  // of the step block
    int64_t block = 0;     // the first
    int64_t count = 0;
  };

  // Rows whose keys are written together, then attention, then copies of pages.
  struct Round {
    int64_t row = 0;
    int64_t rows = 0;
    size_t attention = 0;  // the first of its entries in `attentions`
    size_t count = 0;
    size_t copy = 0;  // the first of its entries in `copies`
    size_t copy_count = 0;
  };

  // What each layer of a group launches.
  struct Group {
    std::vector<Round> rounds;
    std::vector<Attention> attentions;
    std::vector<Copy> copies;
  };

  // Consecutive rows whose logits are wanted.
  struct LogitRun {
    int64_t row = 0;
    int64_t rows = 0;
    int64_t to = 0;  // index of the first among the step's logit rows
  };

  // Reserves memory for this many rows and groups of layers.
  explicit StepLaunches(int64_t max_rows, int64_t group_count = 1);

  // Rows of any sequences; each row has one token and samples one.
  static StepLaunches of_bucket(int64_t rows, int64_t group_count = 1);

  // Starts with the plan's launches and no logit rows. Scratch memory has room for attention's
  // results for `split_pages` pages.
  void begin(const ForwardPlan& plan, int64_t split_pages);
  // Adds logits of these rows.
  void add_logits(int64_t row, int64_t count);

  int64_t rows = 0;
  std::vector<Group> groups;
  std::vector<LogitRun> logit_runs;
  int64_t logit_rows = 0;  // rows with logits
  int64_t samples = 0;  // the first of them sample a token; the logits of the others go to the host
  int64_t waves = 1;    // in which they do: Note [Waves] of kernels/cuda/sampling/sampling.h

 private:
  static void add(const ForwardPlan::Group& plan, const ForwardPlan::Round& round,
                  int64_t split_pages, Group* group);
};

}  // namespace sinkstream
