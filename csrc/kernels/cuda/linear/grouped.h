// `linear` for experts: each has a matrix, and multiplies the rows that chose it. The blocks read
// which rows these are from device memory, so the host need not know:
//   out[split][p][r] = Σ_k weights[e][r][k] · input[row_of[p]][k], position p being one of expert
//   e.
// A row has the same bits as with `linear` and these splits, whichever rows are in its run, and an
// expert without a run is not read.
#pragma once

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_types.h"
#include "kernels/cuda/linear/plan.h"

namespace sinkstream::cuda {

struct GroupedLinearArgs {             // all pointers are to device memory
  TiledMatrix weights;                 // of expert 0, without an order of columns
  int64_t expert_bytes = 0;            // from one expert's tiles to the next one's
  int32_t splits = 0;                  // as in LinearArgs
  const float* bias = nullptr;         // [experts][bias_stride], added in split 0; or null
  int64_t bias_stride = 0;             // at least weights.rows
  const void* input = nullptr;         // bfloat16 [rows, input_stride], as in LinearArgs
  int64_t input_stride = 0;            // likewise
  const int32_t* row_of = nullptr;     // by position: a row of `input`; null: the position itself
  const ExpertRun* runs = nullptr;     // of at most `run_rows` positions each
  const int32_t* run_count = nullptr;  // [1]: how many there are
  int64_t most_runs = 0;               // at most 65535; 0 launches nothing
  int64_t run_rows = 0;                // at most kFewInputs
  // [splits][out_rows][out_stride], by position. weights.rows floats of each position in a run are
  // written.
  float* out = nullptr;
  int64_t out_rows = 0;
  int64_t out_stride = 0;  // at least weights.rows
};

Status linear_grouped(const GroupedLinearArgs& args, Stream stream);

// How many positions a run of `experts` experts should have, if `rows` tokens choose `chosen` each:
// a block that takes many has much to add at the end, and one that takes few reads an expert with
// many rows again. Depends on the launch only, and changes no bit.
constexpr int64_t rows_of_runs(int64_t rows, int64_t chosen, int64_t experts) {
  const int64_t average = rows * chosen / experts;
  for (const int64_t most : {8, 16, 32}) {
    if (rows <= most || 2 * average <= most) return most;
  }
  return kFewInputs;
}

}  // namespace sinkstream::cuda
