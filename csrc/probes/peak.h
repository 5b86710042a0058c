// How fast this machine multiplies and adds: what a prompt's forward is measured by.
#pragma once

#include <cstdint>

#include "common/thread_pool.h"

namespace sinkstream {

struct Peak {
  const char* instruction;  // of one dot or multiply-add
  double rate;              // multiplications and additions a second, each counted
};

enum class PeakUnit {
  kVectors,  // a dot of bfloat16, 512 bits wide, where the processor has it, otherwise a
             // multiply-add of floats; whole numbers may be multiplied faster
  kTiles,    // products of bfloat16 in tile registers, which the processor must have and the
             // system must have given to this process
};

// Independent chains in registers, so many instructions of them on each thread of the pool, rounded
// down to whole rounds of all chains. A hundred million of kVectors take some 30 ms; kTiles by the
// manual one in sixteen cycles.
Peak peak_rate(ThreadPool* pool, int64_t instructions, PeakUnit unit = PeakUnit::kVectors);

}  // namespace sinkstream
