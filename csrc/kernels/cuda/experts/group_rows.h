// Sorts the rows of a step by the experts that they chose, by counting: each choice gets a
// position, those of one expert next to each other, in the order of the rows. Each expert's
// positions are then cut into runs of at most `run_rows`. An expert that no row chose has none.
#pragma once

#include "common/divide_up.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"

namespace sinkstream::cuda {

struct GroupRowsArgs {           // all pointers are to device memory; none alias
  const int32_t* ids = nullptr;  // [rows, chosen]; of a row all different, or all −1
  int64_t rows = 0;              // 0 launches nothing
  int64_t chosen = 0;
  int64_t experts = 0;  // at most kMostExperts
  int64_t run_rows = 0;
  int32_t* positions = nullptr;  // [rows, chosen]; of rows that chose experts
  int32_t* row_of = nullptr;     // [rows · chosen], by position: its row
  ExpertRun* runs = nullptr;     // [most_runs(…)], ascending
  int32_t* run_count = nullptr;  // [1]
};

// No choice of rows has more runs.
constexpr int64_t most_runs(int64_t rows, int64_t chosen, int64_t experts, int64_t run_rows) {
  const int64_t choices = rows * chosen, used = choices < experts ? choices : experts;
  if (rows <= run_rows) return used;  // no expert has more rows than one run
  return used + (choices - used) / run_rows;
}

Status group_rows(const GroupRowsArgs& args, Stream stream);

}  // namespace sinkstream::cuda
