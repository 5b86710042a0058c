// Measures this machine's peak arithmetic rate, the yardstick for prefill.
#pragma once

#include <cstdint>

#include "common/thread_pool.h"

namespace sinkstream {

struct Peak {
  const char* instruction;  // of one dot or multiply-add
  double rate;              // per second, counting multiplications and additions
};

enum class PeakUnit {
  kVectors,  // bfloat16 dot products, 512 bits wide, if the processor has them, else float
             // multiply-adds; integers may be multiplied faster
  kTiles,    // bfloat16 products in tile registers, which the processor must have and the system
             // must have enabled for this process
};

// Runs `instructions` on each thread of the pool, in independent chains in registers, rounded down
// to full rounds of all chains. A hundred million of kVectors take about 30 ms; one of kTiles takes
// sixteen cycles according to the manual.
Peak peak_rate(ThreadPool* pool, int64_t instructions, PeakUnit unit = PeakUnit::kVectors);

}  // namespace sinkstream
