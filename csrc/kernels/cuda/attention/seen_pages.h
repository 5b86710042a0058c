// How many pages of a layer some tokens see, on the host and on the GPU. `first`: of the oldest
// token; `index`: of the newest.
#pragma once

#include <cstdint>

#include "common/divide_up.h"
#include "kernels/cuda/device_types.h"

namespace sinkstream::cuda {

// Sink pages, then window blocks.
struct SeenPages {
  int sink_pages;
  int blocks;
  int64_t first_block;

  constexpr int count() const { return sink_pages + blocks; }
};

// How many sinks the query of token `index` sees.
constexpr int64_t seen_sinks(const SequencePages& sequence, int64_t index) {
  return index + 1 < sequence.sinks ? index + 1 : sequence.sinks;
}

constexpr SeenPages seen_pages(const SequencePages& sequence, int64_t first, int64_t index) {
  SeenPages seen = {};
  seen.sink_pages = int(divide_up(seen_sinks(sequence, index), kPageRows));
  if (first <= index) {
    seen.first_block = (first - sequence.sinks) / kPageRows;
    seen.blocks = int((index - sequence.sinks) / kPageRows - seen.first_block + 1);
  }
  return seen;
}

}  // namespace sinkstream::cuda
