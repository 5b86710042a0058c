// out[t, r] = Σ_k weights[r, k] · input[t, k] (+ bias[r]) (+ what `out` held before).
//
// One order along K: for one table and one input type, the operations that make out[t, r] are
// the same whatever `tokens`, the other rows, the other parts or the number of threads, so a
// token's result does not depend on its company, bit for bit.
//
// Note: [Inputs in 16 bits]
// With InputType::kInt16 each group of 32 inputs of a token that meets codes becomes whole numbers
// and one scale: largest = max |x|, scale = largest / 32767, and x stands for scale · the whole
// number nearest to x · (32767 / largest), ties to even, in float. That is 2^-16 of the group's
// largest number at worst, where bfloat16 loses 2^-9 of each. A group below kMinGroupMagnitude is
// zeros; one that is not finite is NaN. Codes times whole numbers, summed over a group, are exact
// in 32 bits, in any order. Weights that are no codes meet the inputs as they are.
#pragma once

#include "common/divide_up.h"
#include "kernels/launch.h"
#include "kernels/packed_matrix.h"

namespace sinkstream {

// What inputs are rounded to before they are multiplied.
enum class InputType : uint8_t {
  kFloat32,   // not at all
  kBFloat16,  // each by itself
  kInt16,     // groups of 32 beside codes: Note: [Inputs in 16 bits]
};

inline constexpr InputType kInputTypes[] = {InputType::kFloat32, InputType::kBFloat16,
                                            InputType::kInt16};

constexpr const char* name_of(InputType type) {
  switch (type) {
    case InputType::kFloat32: return "float32";
    case InputType::kBFloat16: return "bfloat16";
    case InputType::kInt16: return "int16";
  }
  return "";
}

constexpr float kMaxInt16 = 32767;
constexpr float kMinGroupMagnitude =
    0x1p-100f;  // kMaxInt16 / it is finite, and nothing is subnormal

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
  int64_t cols = 0;  // at least 1
  InputType input_type = InputType::kFloat32;
  const LinearPart* parts = nullptr;  // [part_count]
  int64_t part_count = 0;
  std::byte* scratch = nullptr;  // linear_scratch_bytes(tokens, cols, threads), 64-byte aligned
};

// Note: [A token alone]
// Each thread lays a single token out for itself, in a copy of its own. What one thread has written
// another one fetches from its cache, line by line; so to have the token laid out by one thread for
// all would cost that way twice, one after the other: the outputs of the last call to that thread,
// and what it makes of them to the rest.

// One token's inputs, for every table and every weight type: as the dot instructions want them, and
// their sums over groups.
constexpr int64_t linear_token_bytes(int64_t cols) { return divide_up(cols, 64) * 64 * 4 * 3; }

// Enough for `tokens` or fewer on a pool of `threads`: padded to tiles, or a token alone.
constexpr int64_t linear_scratch_bytes(int64_t tokens, int64_t cols, int64_t threads) {
  const int64_t rows = tokens + 16 > threads ? tokens + 16 : threads;
  return rows * linear_token_bytes(cols) + 4096;
}

using LinearOp = void(const LinearArgs&, const Launch&);

}  // namespace sinkstream
