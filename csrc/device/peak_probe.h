// How fast this machine multiplies and adds: what a prompt's forward is measured by.
#pragma once

#include <cstdint>

#include "common/thread_pool.h"

namespace sinkstream {

struct Peak {
  const char* instruction;  // of one dot or multiply-add
  double rate;              // multiplications and additions a second, each counted
};

// Independent chains in registers, `instructions` of them on each thread of the pool; a hundred
// million take some 30 ms. The instruction is a dot of bfloat16, 512 bits wide, where the processor
// has it, otherwise a multiply-add of floats. Whole numbers and tiles may be multiplied faster.
Peak peak_rate(ThreadPool* pool, int64_t instructions);

}  // namespace sinkstream
