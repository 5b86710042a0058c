// The scheduler: decides what one step of the engine does. Pure: plain numbers in, a plan out.
// Knows nothing about models, memory or time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "cache/memory_amount.h"
#include "engine/shares.h"

namespace sinkstream {

// A sequence without memory, in the order given.
struct WaitingView {
  MemoryAmount memory;      // the most it will ever allocate
  int64_t prompt_left = 1;  // prompt tokens not in its cache when admitted, at least 1
  int64_t length = 0;       // tokens in its cache when admitted
  bool wants_reply = true;
  int64_t to_score = 0;  // the first of these prompt tokens, whose logits score the next one
  int64_t share = 0;     // index into StepLimits::shares
  int64_t priority = 0;  // in its share; lower ones go first
};

// A sequence with memory, in order of admission. Tokens in flight count as cached.
struct RunningView {
  bool is_runnable = true;  // false: parked, or its last token may be in flight
  int64_t prompt_left = 0;  // prompt tokens not in the cache; 0: it decodes
  int64_t length = 0;       // tokens in the cache: the next token's index
  int64_t last_step = -1;   // the last step it was part of; -1: none
  bool wants_reply = true;  // false: it only prefills
  int64_t to_score = 0;     // of its prompt tokens left, the first, whose logits score the next one
  int64_t drafts = 0;       // tokens that a decode row may draft after its own
  int64_t share = 0;        // index into StepLimits::shares
  int64_t priority = 0;     // in its share; lower ones go first
};

// What the experts of a model make a step read.
struct ExpertReads {
  double part = 0;   // of what a step of one token reads, the part that is experts'
  double share = 1;  // of the experts of a layer, the share that a token chooses

  // What a step of N tokens reads, in steps of one token: each chooses as if by chance.
  double of(int64_t tokens) const;
};

struct StepLimits {
  MemoryAmount free;
  int64_t max_sequences = 1;  // running at the same time
  int64_t max_tokens = 1;     // the step's token budget
  int64_t prefill_chunk = 1;  // maximum prompt tokens of one sequence in a step
  // Maximum prompt tokens, over all sequences, in a step that also decodes, or half the number of
  // decoding sequences if that is more: together they take as long as the step of one token.
  int64_t prompt_tokens_per_decode_step = std::numeric_limits<int64_t>::max();
  // With experts, Note [Prompts with experts] holds instead.
  ExpertReads experts = {};
  double deficit = 0;  // StepPlan::deficit of the last step
  // Maximum prompt tokens, over all sequences, that return logits.
  int64_t scored_rows = std::numeric_limits<int64_t>::max();
  // Whose work it is, by index: Note [Fair shares]. Empty: all of it is of share 0.
  std::span<const ShareView> shares = {};
};

struct PlanRow {
  int64_t sequence = 0;       // index among the running ones; newly admitted ones follow in order
  int64_t count = 0;          // how many of its next tokens, at least 1
  bool wants_logits = false;  // of the last of them, to sample
  bool is_scored = false;     // all of them return logits, which score the prompt's next tokens
  int64_t drafts = 0;         // of `count`, the last: guesses that the step verifies

  bool operator==(const PlanRow&) const = default;
};

struct StepPlan {
  int64_t admit = 0;          // how many waiting sequences to admit, in order
  std::vector<PlanRow> rows;  // each sequence at most once; decoding ones first
  double deficit = 0;         // Note [Prompts with experts], in steps of one token

  bool empty() const { return rows.empty(); }
};

// Note: [Prompts with experts]
// Each of a few prompt tokens reads experts of its own, but hundreds share all of them. So a step
// that also decodes may take a chunk that gives each expert 16 tokens. What the chunk is expected
// to add to the step, in reading and arithmetic, is a deficit of the decoding sequences, less the
// time of the step without it. Later steps reduce it by their time, and take no prompt tokens until
// there is none. So prompts take at most half of the time, and a decoding sequence waits for one
// such chunk at a time. Where a chunk gains little over as many tokens as never cause a deficit,
// which is so with many decoding sequences, each step takes those. It ends once none decodes.

// Plans steps; reuses its working memory.
class StepPlanner {
 public:
  // Admits strictly in the order given, so that small requests cannot starve a large one. Every
  // decoding sequence gets its token and its drafts. The rest of the budget goes to prompts: each
  // chunk to the share that has had the fewest tokens, and in it by priority, then to the least
  // recently served. A step that also decodes takes no more prompt tokens than
  // `prompt_tokens_per_decode_step` allows, so that no decoding sequence waits longer than two of
  // its own steps; with experts, than Note [Prompts with experts] allows. A chunk ends at a
  // multiple of prefill_chunk, counted from index 0, so that its boundaries do not depend on the
  // batch; only a budget smaller than the chunk cuts it. If decoding alone would fill the budget,
  // all sequences are served so instead, so that prompts cannot starve. The last token of a prompt
  // that is scored has a row of its own: it scores nothing.
  void plan(std::span<const WaitingView> waiting, std::span<const RunningView> running,
            const StepLimits& limits, StepPlan* plan);

 private:
  void admit(std::span<const WaitingView> waiting, const StepLimits& limits, StepPlan* plan);
  void begin_turns(bool prompts_only, std::span<const ShareView> shares);
  int64_t next_in_turn();
  void charge(const PlanRow& row);

  // A share while a step is planned.
  struct Turn {
    ShareView share;
    size_t next = 0;  // in `in_turn_`
    size_t end = 0;
  };

  std::vector<RunningView> running_;  // including the newly admitted
  std::vector<int64_t> in_turn_;      // indices into `running_`: by share, in the order of each
  std::vector<Turn> turns_;           // of each share
};

}  // namespace sinkstream
