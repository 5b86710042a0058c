// out[t, r] = Σ_k weights[r, k] · input[t, k] (+ bias[r]) (+ what `out` held before).
//
// One order along K: for one table and one input type, the operations that make out[t, r] are
// the same whatever `tokens`, the other rows, the other parts or the number of threads, so a
// token's result does not depend on its company, bit for bit.
#pragma once

#include "common/dtype.h"
#include "kernels/launch.h"
#include "kernels/packed_matrix.h"

namespace sinkstream {

// One matrix of several that read the same input in one call (q, k and v; gate and up).
struct LinearPart {
  PackedMatrix weights;         // cols equal to LinearArgs::cols
  const float* bias = nullptr;  // [weights.rows], or null
  float* out = nullptr;         // [tokens, out_stride]; aliases neither the input nor other parts
  int64_t out_stride = 0;       // floats from one token to the next, at least weights.rows
  bool accumulate = false;      // adds to what `out` holds (a residual) after the bias was added
};

struct LinearArgs {
  const float* input = nullptr;  // [tokens, input_stride]
  int64_t input_stride = 0;      // floats from one token to the next, at least cols
  int64_t tokens = 0;
  int64_t cols = 0;
  // kFloat32: inputs are used as they are. kBFloat16: each is first rounded to bfloat16.
  DType input_type = DType::kFloat32;
  const LinearPart* parts = nullptr;  // [part_count]
  int64_t part_count = 0;
  std::byte* scratch = nullptr;  // linear_scratch_bytes(tokens, cols), 64-byte aligned
};

// Enough for every table and every weight type: inputs as the dot instructions want them, and
// their sums over groups.
constexpr int64_t linear_scratch_bytes(int64_t tokens, int64_t cols) {
  return (tokens + 16) * ((cols + 63) / 64 * 64) * 4 * 3 + 4096;
}

using LinearOp = void(const LinearArgs&, const Launch&);

}  // namespace sinkstream
