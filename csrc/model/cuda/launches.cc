#include "model/cuda/launches.h"

#include <algorithm>

namespace sinkstream {

StepLaunches::StepLaunches(int64_t max_rows, int64_t group_count)
    : groups(static_cast<size_t>(group_count)) {
  for (Group& group : groups) {
    group.rounds.reserve(max_rows);
    group.attentions.reserve(max_rows);
    group.copies.reserve(max_rows);
  }
  logit_runs.reserve(max_rows);
}

StepLaunches StepLaunches::of_bucket(int64_t rows, int64_t group_count) {
  StepLaunches launches(1, group_count);
  launches.rows = rows;
  for (Group& group : launches.groups) {
    group.rounds.push_back({.row = 0, .rows = rows, .attention = 0, .count = 1});
    group.attentions.push_back({.row = 0, .rows = rows, .is_split = true});
  }
  launches.add_logits(0, rows);
  launches.samples = rows;
  return launches;
}

void StepLaunches::begin(const ForwardPlan& plan, int64_t split_pages) {
  rows = plan.rows();
  logit_runs.clear();
  logit_rows = 0;
  samples = 0;
  waves = 1;
  for (size_t g = 0; g < groups.size(); ++g) {
    Group& group = groups[g];
    group.rounds.clear();
    group.attentions.clear();
    group.copies.clear();
    for (const ForwardPlan::Round& round : plan.groups[g].rounds) {
      add(plan.groups[g], round, split_pages, &group);
    }
  }
}

// Consecutive single rows share a launch, regardless of sequence, as long as their pages fit in
// scratch memory; each longer piece has its own. A row that does not fit alone walks over its
// pages.
void StepLaunches::add(const ForwardPlan::Group& plan, const ForwardPlan::Round& round,
                       int64_t split_pages, Group* group) {
  auto& [rounds, attentions, copies] = *group;
  rounds.push_back({.row = round.row,
                    .rows = round.rows,
                    .attention = attentions.size(),
                    .copy = copies.size()});
  const size_t end = round.piece + round.count;
  for (size_t i = round.piece; i < end;) {
    const ForwardPlan::Piece& piece = plan.pieces[i];
    Attention attention = {.row = piece.row, .rows = piece.count, .span_rows = piece.count};
    int64_t pages = piece.pages->pages_per_layer();
    attention.is_split = piece.count == 1 && pages <= split_pages;
    ++i;
    for (; piece.count == 1 && i < end && plan.pieces[i].count == 1; ++i) {
      const int64_t more = plan.pieces[i].pages->pages_per_layer();
      if (attention.is_split ? pages + more > split_pages : more <= split_pages) break;
      pages += more;
      ++attention.rows;
    }
    attentions.push_back(attention);
  }
  for (size_t i = round.piece; i < end; ++i) {
    const ForwardPlan::Piece& piece = plan.pieces[i];
    if (piece.scratch_pages == 0) continue;
    copies.push_back({.sequence = static_cast<int32_t>(i),
                      .block = piece.kept_block(),
                      .count = piece.end_block() - piece.kept_block()});
  }
  rounds.back().count = attentions.size() - rounds.back().attention;
  rounds.back().copy_count = copies.size() - rounds.back().copy;
}

void StepLaunches::add_logits(int64_t row, int64_t count) {
  if (count == 0) return;
  if (!logit_runs.empty() && logit_runs.back().row + logit_runs.back().rows == row) {
    logit_runs.back().rows += count;
  } else {
    logit_runs.push_back({row, count, logit_rows});
  }
  logit_rows += count;
}

}  // namespace sinkstream
