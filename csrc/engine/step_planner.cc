#include "engine/step_planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace sinkstream {

namespace {

// Of a chunk for all experts: enough to multiply for about as long as reading them takes.
constexpr double kTokensOfExpert = 16;
// How much faster prompts must be read for running streams to wait for a chunk at a time.
constexpr double kWorthWaiting = 1.25;

int64_t chunk_of(const RunningView& sequence, int64_t prefill_chunk) {
  return std::min(sequence.prompt_left, prefill_chunk - sequence.length % prefill_chunk);
}

// What a step of `decoding` decode rows takes, in steps of one token: reading, or, with many rows,
// arithmetic.
double time_of(int64_t decoding, const StepLimits& limits) {
  const auto per_step = static_cast<double>(limits.prompt_tokens_per_decode_step);
  return std::max(limits.experts.of(decoding), static_cast<double>(decoding) / (2 * per_step));
}

// What `prompt` rows add to it.
double added_time(int64_t decoding, int64_t prompt, const StepLimits& limits) {
  const auto per_step = static_cast<double>(limits.prompt_tokens_per_decode_step);
  return limits.experts.of(decoding + prompt) - limits.experts.of(decoding) +
         static_cast<double>(prompt) / per_step;
}

// The maximum number of prompt rows in a step with `decoding` decode rows, if prompts have `unread`
// left. A prompt row costs at most as much as a decode row, so an equal number could double the
// step time; half leaves a margin for noise.
int64_t max_prefill_rows(int64_t decoding, int64_t unread, const StepLimits& limits) {
  if (limits.experts.part == 0) {
    return std::max(limits.prompt_tokens_per_decode_step, decoding / 2);
  }
  if (limits.deficit > 0) return 0;
  const double own = time_of(decoding, limits);
  int64_t few = 0, most = std::min(unread, limits.prefill_chunk) + 1;  // few can be; most cannot
  while (few + 1 < most) {
    const int64_t rows = std::midpoint(few, most);
    (added_time(decoding, rows, limits) <= own ? few : most) = rows;
  }
  const auto of_all = static_cast<int64_t>(std::ceil(kTokensOfExpert / limits.experts.share));
  const int64_t many = std::min({of_all, unread, limits.prefill_chunk});
  // Prompt rows by time, until the deficit has ended.
  const auto speed_of = [&](int64_t rows) {
    const double added = added_time(decoding, rows, limits);
    const double steps = std::max(1.0, std::ceil(added / own));
    return static_cast<double>(rows) / (steps * own + added);
  };
  return speed_of(many) > kWorthWaiting * speed_of(few) ? many : few;
}

// The deficit after a step with these rows.
double deficit_after(int64_t decoding, int64_t prompt, const StepLimits& limits) {
  if (decoding == 0 || limits.experts.part == 0) return 0;
  const double added = added_time(decoding, prompt, limits);
  return std::max(0.0, limits.deficit + added - time_of(decoding, limits));
}

int64_t decode_count(const RunningView& sequence) { return 1 + sequence.drafts; }

PlanRow decode_row(int64_t index, int64_t count) {
  return {.sequence = index, .count = count, .wants_logits = true, .drafts = count - 1};
}

PlanRow prefill_row(int64_t index, const RunningView& sequence, int64_t count) {
  return {.sequence = index,
          .count = count,
          .wants_logits = sequence.wants_reply && count == sequence.prompt_left,
          .is_scored = sequence.to_score > 0};
}

}  // namespace

double ExpertReads::of(int64_t tokens) const {
  return 1 - part + part * (1 - std::pow(1 - share, static_cast<double>(tokens))) / share;
}

void StepPlanner::admit(std::span<const WaitingView> waiting, const StepLimits& limits,
                        StepPlan* plan) {
  MemoryAmount free = limits.free;
  for (const WaitingView& sequence : waiting) {
    const bool has_seat = static_cast<int64_t>(running_.size()) < limits.max_sequences;
    if (!has_seat || !sequence.memory.fits_in(free)) return;
    free -= sequence.memory;
    running_.push_back({.prompt_left = sequence.prompt_left,
                        .length = sequence.length,
                        .wants_reply = sequence.wants_reply,
                        .to_score = sequence.to_score,
                        .share = sequence.share,
                        .priority = sequence.priority});
    ++plan->admit;
  }
}

// Prepares `next_in_turn` for the sequences that can run.
void StepPlanner::begin_turns(bool prompts_only, std::span<const ShareView> shares) {
  turns_.assign(std::max<size_t>(shares.size(), 1), {});
  for (size_t i = 0; i < shares.size(); ++i) turns_[i].share = shares[i];
  in_turn_.clear();
  for (size_t index = 0; index < running_.size(); ++index) {
    const RunningView& sequence = running_[index];
    if (!sequence.is_runnable || (prompts_only && sequence.prompt_left == 0)) continue;
    in_turn_.push_back(static_cast<int64_t>(index));
  }
  std::sort(in_turn_.begin(), in_turn_.end(), [this](int64_t a, int64_t b) {
    const RunningView &one = running_[a], &other = running_[b];
    return std::tuple(one.share, one.priority, one.last_step, a) <
           std::tuple(other.share, other.priority, other.last_step, b);
  });
  for (size_t i = 0; i < in_turn_.size(); ++i) {
    Turn& turn = turns_[static_cast<size_t>(running_[in_turn_[i]].share)];
    if (turn.end == 0) turn.next = i;
    turn.end = i + 1;
  }
}

// The next sequence of the share that has had the fewest tokens; below 0: none is left.
int64_t StepPlanner::next_in_turn() {
  Turn* least = nullptr;
  for (Turn& turn : turns_) {
    if (turn.next == turn.end) continue;
    if (least == nullptr || turn.share.served < least->share.served) least = &turn;
  }
  return least == nullptr ? -1 : in_turn_[least->next++];
}

// Counts a row's tokens as its share's.
void StepPlanner::charge(const PlanRow& row) {
  ShareView& share = turns_[static_cast<size_t>(running_[row.sequence].share)].share;
  share.served += static_cast<double>(row.count) / share.weight;
}

void StepPlanner::plan(std::span<const WaitingView> waiting, std::span<const RunningView> running,
                       const StepLimits& limits, StepPlan* plan) {
  plan->admit = 0;
  plan->rows.clear();
  running_.assign(running.begin(), running.end());
  admit(waiting, limits, plan);

  const auto decodes = [](const RunningView& s) { return s.is_runnable && s.prompt_left == 0; };
  int64_t decoding = 0, unread = 0;  // rows
  for (const RunningView& sequence : running_) {
    if (decodes(sequence)) decoding += decode_count(sequence);
    if (sequence.is_runnable) unread += sequence.prompt_left;
  }
  int64_t left = limits.max_tokens;
  const bool round_robin = decoding >= left;
  if (!round_robin) {
    for (size_t index = 0; index < running_.size(); ++index) {
      const RunningView& sequence = running_[index];
      if (!decodes(sequence)) continue;
      plan->rows.push_back(decode_row(static_cast<int64_t>(index), decode_count(sequence)));
    }
    left -= decoding;
    if (decoding > 0) left = std::min(left, max_prefill_rows(decoding, unread, limits));
  }

  begin_turns(/*prompts_only=*/!round_robin, limits.shares);
  std::for_each(plan->rows.begin(), plan->rows.end(), [this](const PlanRow& row) { charge(row); });
  int64_t prompt = 0;  // rows so far
  int64_t scored_rows_left = limits.scored_rows;
  while (left > 0) {
    const int64_t index = next_in_turn();
    if (index < 0) break;
    const RunningView& sequence = running_[index];
    if (sequence.prompt_left == 0) {
      const int64_t count = std::min(decode_count(sequence), left);
      plan->rows.push_back(decode_row(index, count));
      charge(plan->rows.back());
      left -= count;
      continue;
    }
    int64_t count = chunk_of(sequence, limits.prefill_chunk);
    if (sequence.to_score > 0) {
      count = std::min({count, sequence.to_score, scored_rows_left});
      if (count == 0) continue;
    }
    if (count > left && prompt > 0) continue;  // waiting for a full chunk beats taking part of one
    count = std::min(count, left);
    plan->rows.push_back(prefill_row(index, sequence, count));
    charge(plan->rows.back());
    left -= count;
    if (sequence.to_score > 0) scored_rows_left -= count;
    prompt += count;
  }
  plan->deficit = round_robin ? 0 : deficit_after(decoding, prompt, limits);
  // Decode rows come first here, too: a model may have dedicated kernels for them.
  if (round_robin) {
    std::sort(plan->rows.begin(), plan->rows.end(), [this](const PlanRow& a, const PlanRow& b) {
      const bool reads_a = running_[a.sequence].prompt_left > 0,
                 reads_b = running_[b.sequence].prompt_left > 0;
      return reads_a != reads_b ? reads_b : a.sequence < b.sequence;
    });
  }
}

}  // namespace sinkstream
