// The heap of a test program: counts what is taken from it, and lets allocations fail, as they do
// where there is no memory left.
#pragma once

#include <cstdint>

namespace sinkstream {

// Calls of operator new so far, in all threads.
int64_t allocations();

// From now on `after` allocations of the calling thread by `new` succeed, and `failures` behind
// them throw std::bad_alloc. Replaces what was said before; other threads are not affected.
void fail_allocations(int64_t after, int64_t failures);

// How many allocations have failed so, in all threads.
int64_t failed_allocations();

}  // namespace sinkstream
