// Where a kernel runs. On a CPU: the threads that share its outputs.
#pragma once

#include "common/thread_pool.h"

namespace sinkstream {

struct Launch {
  ThreadPool* pool;  // not null
};

}  // namespace sinkstream
