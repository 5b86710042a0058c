#include "engine/step.h"

#include <algorithm>

namespace sinkstream {

namespace {

int64_t chunk_of(const RunningView& sequence, int64_t prefill_chunk) {
  return std::min(sequence.unread, prefill_chunk - sequence.length % prefill_chunk);
}

// Prompt rows beside so many that decode. A row of a prompt costs at most what a decoding row does,
// so as many would double the step; half as many leave room for what a machine adds by itself.
int64_t prompt_rows_beside(int64_t decoding, const StepLimits& limits) {
  return std::max(limits.prompt_beside_decoding, decoding / 2);
}

PlanRow decode_row(int64_t place) { return {place, 1, true}; }

PlanRow prefill_row(int64_t place, const RunningView& sequence, int64_t count) {
  return {place, count, sequence.wants_reply && count == sequence.unread};
}

}  // namespace

void StepPlanner::admit(std::span<const WaitingView> waiting, const StepLimits& limits,
                        StepPlan* plan) {
  int64_t free_pages = limits.free_pages;
  for (const WaitingView& sequence : waiting) {
    const bool has_place = static_cast<int64_t>(running_.size()) < limits.max_sequences;
    if (!has_place || sequence.pages > free_pages) return;
    free_pages -= sequence.pages;
    running_.push_back({.unread = sequence.unread,
                        .length = sequence.length,
                        .wants_reply = sequence.wants_reply});
    ++plan->admit;
  }
}

void StepPlanner::sort_by_turn(bool prompts_only) {
  turns_.clear();
  for (size_t place = 0; place < running_.size(); ++place) {
    const RunningView& sequence = running_[place];
    if (!sequence.is_runnable || (prompts_only && sequence.unread == 0)) continue;
    turns_.push_back(static_cast<int64_t>(place));
  }
  std::sort(turns_.begin(), turns_.end(), [this](int64_t a, int64_t b) {
    const int64_t turn_a = running_[a].last_turn, turn_b = running_[b].last_turn;
    return turn_a != turn_b ? turn_a < turn_b : a < b;
  });
}

void StepPlanner::plan(std::span<const WaitingView> waiting, std::span<const RunningView> running,
                       const StepLimits& limits, StepPlan* plan) {
  plan->admit = 0;
  plan->rows.clear();
  running_.assign(running.begin(), running.end());
  admit(waiting, limits, plan);

  const auto decodes = [](const RunningView& s) { return s.is_runnable && s.unread == 0; };
  const int64_t decoding = std::count_if(running_.begin(), running_.end(), decodes);
  int64_t left = limits.max_tokens;
  const bool in_turns = decoding >= left;
  if (!in_turns) {
    for (size_t place = 0; place < running_.size(); ++place) {
      if (decodes(running_[place])) plan->rows.push_back(decode_row(static_cast<int64_t>(place)));
    }
    left -= decoding;
    if (decoding > 0) left = std::min(left, prompt_rows_beside(decoding, limits));
  }

  sort_by_turn(/*prompts_only=*/!in_turns);
  bool reads = false;  // whether a prompt has its chunk in this step
  for (const int64_t place : turns_) {
    if (left == 0) break;
    const RunningView& sequence = running_[place];
    if (sequence.unread == 0) {
      plan->rows.push_back(decode_row(place));
      left -= 1;
      continue;
    }
    int64_t count = chunk_of(sequence, limits.prefill_chunk);
    if (count > left && reads) continue;  // its turn comes sooner than half of it is worth
    count = std::min(count, left);
    plan->rows.push_back(prefill_row(place, sequence, count));
    left -= count;
    reads = true;
  }
  // Taken in turns, decoding rows still stand first: a model may have kernels of their own for
  // them.
  if (in_turns) {
    std::sort(plan->rows.begin(), plan->rows.end(), [this](const PlanRow& a, const PlanRow& b) {
      const bool reads_a = running_[a.sequence].unread > 0,
                 reads_b = running_[b.sequence].unread > 0;
      return reads_a != reads_b ? reads_b : a.sequence < b.sequence;
    });
  }
}

}  // namespace sinkstream
