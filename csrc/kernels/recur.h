// A gated recurrence: each head keeps a state S [key_dim, value_dim], which every token changes and
// then reads. With query q, key k, value v, decay g, strength β and skip D of its head:
//   S ← e^g · S
//   u = β · (v − kᵀS)  by the delta rule (gated delta nets), u = β · v without it (Mamba-2)
//   S ← S + k uᵀ
//   o = qᵀS (+ D · v)
// In Mamba-2's words: q is C, k is B, v is x, β is dt, g is dt · A. Token by token, in order,
// whatever the spans are: so no result depends on how the text was cut. S is float32 after each
// token. A state is [heads, key_dim, value_dim]; at the beginning of a sequence it is zeros.
//
// Only `reference` has it yet, so it is in no table.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/state_span.h"

namespace sinkstream {

struct RecurArgs {
  const float* query = nullptr;  // [rows, key_heads, key_dim]
  const float* key = nullptr;    // likewise
  int64_t key_stride = 0;        // floats from a row of these two to the next
  const float* value = nullptr;  // [rows, heads, value_dim]
  int64_t value_stride = 0;
  const float* decay = nullptr;      // [rows, heads]: g, at most 0
  const float* strength = nullptr;   // [rows, heads]: β
  const float* skip = nullptr;       // [heads]: D; null: 0
  float* out = nullptr;              // [rows, heads, value_dim], dense; aliases no input
  const StateSpan* spans = nullptr;  // [span_count]
  int64_t span_count = 0;
  int64_t heads = 0;      // a multiple of key_heads
  int64_t key_heads = 0;  // each serves the next heads / key_heads heads
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  bool delta_rule = false;
};

using RecurOp = void(const RecurArgs&, const Launch&);

}  // namespace sinkstream
