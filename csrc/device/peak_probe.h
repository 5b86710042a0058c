// How fast this machine multiplies: what bounds a prompt's forward.
#pragma once

#include <cstdint>

#include "common/thread_pool.h"

namespace sinkstream {

struct Peak {
  const char* instruction;  // of one dot or multiply-add
  double rate;              // multiplications and additions a second, each counted
};

// Independent chains in registers, `instructions` of them on each thread of the pool; a hundred
// million take some 30 ms. The instruction is the widest that multiplies 16-bit numbers in one
// step: vdpbf16ps where the processor has it; otherwise a multiply-add of floats.
Peak peak_rate(ThreadPool* pool, int64_t instructions);

}  // namespace sinkstream
