// Replaces a test program's operator new: counts allocations, and makes them fail as if memory had
// run out.
#pragma once

#include <cstdint>

namespace sinkstream {

// Calls of operator new so far, in all threads.
int64_t allocations();

// From now on `after` allocations of the calling thread succeed, and the `failures` after them
// throw std::bad_alloc. Replaces an earlier call; other threads are not affected.
void fail_allocations(int64_t after, int64_t failures);

// Allocations that failed this way so far, in all threads.
int64_t failed_allocations();

}  // namespace sinkstream
