// Counts what this test program takes from the heap.
#pragma once

#include <cstdint>

namespace sinkstream {

// Calls of operator new so far, in all threads.
int64_t allocations();

}  // namespace sinkstream
