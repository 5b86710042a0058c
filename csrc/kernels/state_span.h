// What the ops with states run over: each reads a state, and writes the one after its tokens.
#pragma once

#include <cstdint>

namespace sinkstream {

// Consecutive tokens of one sequence.
struct StateSpan {
  int64_t row = 0;              // of its first token
  int64_t count = 0;            // at least 1
  const float* read = nullptr;  // the state before them
  float* write = nullptr;       // the state after them; does not alias `read`
};

}  // namespace sinkstream
