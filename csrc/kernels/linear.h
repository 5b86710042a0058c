// out[t, r] = Σ_k weights[r, k] · input[t, k] (+ bias[r]) (+ the previous out[t, r]).
//
// One order along K: for one table and one input type, out[t, r] is computed by the same operations
// regardless of `tokens`, the other rows, the other parts and the number of threads. So a token's
// result is bit-identical in any batch.
//
// Note: [Inputs as integers]
// With InputType::kInt16 and kInt8, each unit of 32 inputs of a token that is multiplied by codes
// becomes integers and one scale: largest = max |x|, scale = largest / most, and x is replaced by
// scale · the integer nearest to x · (most / largest), ties to even, in float; `most` is 32767 or
// 127. The error is at most 2^-16 or 2^-8 of the unit's largest input; bfloat16 loses up to 2^-9 of
// each. If `largest` is below kMinGroupMagnitude the unit is zeros; if it is not finite the unit is
// NaN. Codes times integers, summed over a group, are exact in 32 bits in any order. Other
// weights, FP8 among them, meet the inputs unchanged with kInt16, in bfloat16 with kInt8. Here
// codes are those that stand for integers.
//
// Note: [One order for integers of 8 bits]
// With kInt8, every table, `reference` included, gives the same bits for weights that are codes.
// For each group of columns that share a scale, in order along K, with one rounding per line:
//
//   sum = scale of the weights · Σ value · integer
//   acc = sum · scale of the inputs + acc
//   acc = minimum · (scale of the inputs · Σ integer) + acc, if the format has minima; the product
//         in parentheses is rounded, too
//
// `acc` starts from 0; then the bias and the previous output are added.
#pragma once

#include "common/divide_up.h"
#include "kernels/launch.h"
#include "kernels/packed_matrix.h"

namespace sinkstream {

// What inputs are rounded to before they are multiplied.
enum class InputType : uint8_t {
  kFloat32,   // not at all
  kBFloat16,  // each individually
  kInt16,     // in units of 32, where weights are codes: Note: [Inputs as integers]
  kInt8,      // likewise
};

inline constexpr InputType kInputTypes[] = {InputType::kFloat32, InputType::kBFloat16,
                                            InputType::kInt16, InputType::kInt8};

constexpr const char* name_of(InputType type) {
  switch (type) {
    case InputType::kFloat32: return "float32";
    case InputType::kBFloat16: return "bfloat16";
    case InputType::kInt16: return "int16";
    case InputType::kInt8: return "int8";
  }
  return "";
}

// The largest integer that inputs are rounded to; 0 if they stay floats.
constexpr float most_of(InputType type) {
  return type == InputType::kInt16 ? 32767 : type == InputType::kInt8 ? 127 : 0;
}

// What inputs that meet no codes are rounded to.
constexpr InputType without_integers(InputType type) {
  if (type == InputType::kInt16) return InputType::kFloat32;
  return type == InputType::kInt8 ? InputType::kBFloat16 : type;
}

// 32767 / kMinGroupMagnitude is finite, and nothing becomes subnormal.
constexpr float kMinGroupMagnitude = 0x1p-100f;

// Note: [Inputs of a part]
// The parts of a call read the call's input (q, k and v; gate and up), or one of their own, with
// tokens of their own (experts). A list of rows gathers: token t of the part reads row row_of[t] of
// its input, and its result is row t of `out`, so outputs are never scattered. Inputs are laid out
// once for parts that read the same tokens and stand side by side. A part's bits are those of a
// call of its own.

// One of the matrices of one call.
struct LinearPart {
  PackedMatrix weights;         // cols equal to LinearArgs::cols
  const float* bias = nullptr;  // [weights.rows], or null
  float* out = nullptr;         // [tokens, out_stride]; aliases neither an input nor other parts
  int64_t out_stride = 0;       // floats from one token to the next, at least weights.rows
  bool accumulate = false;      // adds to what `out` holds (a residual), after the bias
  // What it reads instead of the call's; null: the call's, and the next three fields are not read.
  const float* input = nullptr;     // [rows, input_stride]
  int64_t input_stride = 0;         // at least cols
  int64_t tokens = 0;               // in [0, LinearArgs::tokens]
  const int32_t* row_of = nullptr;  // [tokens]: rows of `input`; null: 0, 1, 2, …
};

struct LinearArgs {
  // Of the parts without inputs of their own.
  const float* input = nullptr;     // [rows, input_stride]
  int64_t input_stride = 0;         // floats from one row to the next, at least cols
  int64_t tokens = 0;               // also the most that a part has
  const int32_t* row_of = nullptr;  // [tokens]: rows of `input`; null: 0, 1, 2, …
  int64_t cols = 0;                 // at least 1
  InputType input_type = InputType::kFloat32;
  const LinearPart* parts = nullptr;  // [part_count]
  int64_t part_count = 0;
  std::byte* scratch = nullptr;  // linear_scratch_bytes(tokens, cols, threads), 64-byte aligned
};

// Note: [Single token]
// With one token, each thread lays out the inputs in a copy of its own. A thread that reads what
// another wrote fetches it from the writer's cache, line by line. If one thread laid out the token
// for all, that transfer would happen twice in sequence: the last call's outputs to that thread,
// and the laid-out inputs from it to the others.

// Scratch for one token's inputs, enough for every table and weight type: in the layout of the dot
// instructions, and their sums over groups.
constexpr int64_t linear_token_bytes(int64_t cols) { return divide_up(cols, 64) * 64 * 4 * 3; }

// Enough for `tokens` or fewer on a pool of `threads`: padded to tiles, or a copy per thread.
constexpr int64_t linear_scratch_bytes(int64_t tokens, int64_t cols, int64_t threads) {
  const int64_t rows = tokens + 16 > threads ? tokens + 16 : threads;
  return rows * linear_token_bytes(cols) + 4096;
}

using LinearOp = void(const LinearArgs&, const Launch&);

}  // namespace sinkstream
