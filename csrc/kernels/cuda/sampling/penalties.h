// The tokens that penalties count, in device memory: sampling/penalty_ring.h for a GPU. A sequence
// has a table of fixed size: its live tokens (the first `sinks` and the last `window`) and a sparse
// count per id. sample.h appends a decoded token in O(1).
//
// The two functions below are for rare events, outside captured graphs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/divide_up.h"
#include "common/power_of_two.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/logits.h"

namespace sinkstream::cuda {

struct PenaltyHead {
  int64_t length;  // tokens appended, evicted ones included
  int64_t sinks;
  int64_t window;    // at least 1; sinks + window <= PenaltyTables::capacity
  int32_t distinct;  // live ids
  int32_t unused;
};

// An entry of the hash table from ids to counts.
struct PenaltyHashEntry {
  int32_t id;           // −1: empty
  int32_t count_index;  // where its count is in the dense list
};

// Layout of one sequence's table.
struct PenaltyLayout {
  int64_t capacity;

  // At most half full, so that a search takes two or three steps.
  constexpr int64_t hash_size() const { return power_of_two_above(2 * capacity + 1); }
  constexpr int64_t hash_offset() const { return sizeof(PenaltyHead); }
  constexpr int64_t counts_offset() const {
    return hash_offset() + hash_size() * int64_t{sizeof(PenaltyHashEntry)};
  }
  // The sinks' tokens, then the window's, a ring.
  constexpr int64_t tokens_offset() const {
    return counts_offset() + capacity * int64_t{sizeof(TokenCount)};
  }
  constexpr int64_t bytes() const {
    return divide_up(tokens_offset() + capacity * int64_t{sizeof(int32_t)}, 16) * 16;
  }
};

struct PenaltyTables {
  std::byte* memory = nullptr;  // in device memory, 16-byte aligned: table `t` begins at
                                // memory + t · PenaltyLayout{capacity}.bytes()
  int64_t capacity = 0;         // the most live tokens of a sequence; at least 1
};

struct PenaltyResetArgs {
  PenaltyTables tables;
  int32_t table = 0;
  int64_t sinks = 0;   // at least 0
  int64_t window = 1;  // at least 1
};

struct PenaltyAppendArgs {
  PenaltyTables tables;
  int32_t table = 0;
  const int32_t* ids = nullptr;  // [count], at least 0; in device or pinned memory
  int64_t count = 0;             // at least 1
};

// Empties a table, whatever it held.
Status penalties_reset(const PenaltyResetArgs& args, Stream stream);

// Appends many tokens and recounts the live ones in parallel: O(capacity + count).
Status penalties_append(const PenaltyAppendArgs& args, Stream stream);

}  // namespace sinkstream::cuda
