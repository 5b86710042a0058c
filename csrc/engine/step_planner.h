// Decides what one step of the engine does. Pure: plain numbers in, a plan out; knows no model, no
// memory and no time.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace sinkstream {

// A sequence that has no memory yet, in order of arrival.
struct WaitingView {
  int64_t pages = 0;        // all that it will ever take
  int64_t prompt_left = 1;  // prompt tokens that will not be in its cache then, at least 1
  int64_t length = 0;       // tokens that will be
  bool wants_reply = true;
};

// A sequence that holds its memory, in order of admission. What a step under way appends to its
// cache is there already.
struct RunningView {
  bool is_runnable = true;  // false: parked, or what is under way may be its last
  int64_t prompt_left = 0;  // prompt tokens that are not in the cache yet; 0: it decodes
  int64_t length = 0;       // tokens in the cache: the index of its next one
  int64_t last_step = -1;   // the step that it last took part in; -1: none
  bool wants_reply = true;  // false: it only reads
};

struct StepLimits {
  int64_t free_pages = 0;
  int64_t max_sequences = 1;  // running at the same time
  int64_t max_tokens = 1;     // the step's budget
  int64_t prefill_chunk = 1;  // most prompt tokens of one sequence in a step
  // Most prompt tokens of all sequences in a step in which somebody decodes, or one for every two
  // that do, if that is more.
  int64_t prompt_tokens_per_decode_step = std::numeric_limits<int64_t>::max();
};

struct PlanRow {
  int64_t sequence = 0;  // index among the running ones; newly admitted ones follow them in order
  int64_t count = 0;     // its next tokens, at least 1
  bool wants_logits = false;

  bool operator==(const PlanRow&) const = default;
};

struct StepPlan {
  int64_t admit = 0;          // so many of the waiting ones start, the first ones
  std::vector<PlanRow> rows;  // each sequence at most once; decoding ones first

  bool empty() const { return rows.empty(); }
};

// Plans steps; keeps its working memory between them.
class StepPlanner {
 public:
  // Admits in order of arrival, and nobody past one that has to wait: a large request is not
  // starved by small ones. Every decoding sequence gets its token. What is left of the budget goes
  // to prompts, to the one that has waited longest for a turn first, but beside decoding sequences
  // no more than `prompt_tokens_per_decode_step` says, so that nobody waits for more than two of
  // its own steps. A chunk ends at a multiple of prefill_chunk, counted from index 0, so that its
  // borders do not depend on company; only a budget that is smaller than the chunk cuts it. Where
  // decoding alone would fill the budget, all sequences take turns instead, so that a prompt cannot
  // be shut out.
  void plan(std::span<const WaitingView> waiting, std::span<const RunningView> running,
            const StepLimits& limits, StepPlan* plan);

 private:
  void admit(std::span<const WaitingView> waiting, const StepLimits& limits, StepPlan* plan);
  void sort_by_last_step(bool prompts_only);

  std::vector<RunningView> running_;   // the admitted ones included
  std::vector<int64_t> by_last_step_;  // indices into `running_`
};

}  // namespace sinkstream
