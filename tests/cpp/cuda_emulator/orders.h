// How a test controls the emulator: the order of threads and blocks, and launches that fail.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "kernels/cuda/cuda_stream.h"

namespace sinkstream::cuda::emulator {

// An error of a kernel: a deadlock, threads at different barriers, a copy that is never awaited.
struct Fault : std::logic_error {
  using std::logic_error::logic_error;
};

// Threads switch only where they wait for each other. kForward continues with the lowest ready
// thread, kReverse with the highest, kRandom with any; likewise for blocks.
struct Order {
  enum Kind { kForward, kReverse, kRandom } kind = kForward;
  uint64_t seed = 1;  // of kRandom
  const char* name = "forward";
};

// Later launches of this thread use `order`. The default is kForward.
void set_order(const Order& order);

// The next launch of this thread runs nothing and returns `status`.
void fail_next_launch(Status status);

// Whether this build detects races, twenty times slower: tests then use small shapes.
#if defined(__SANITIZE_THREAD__)
constexpr bool kFindsRaces = true;
#else
constexpr bool kFindsRaces = false;
#endif

// Calls test(order) once per order. One order is enough to find races.
template <typename Test>
void in_every_order(const Test& test) {
  constexpr Order kOrders[] = {
      {}, {Order::kReverse, 0, "reverse"}, {Order::kRandom, 20261122, "random"}};
  struct Forward {
    ~Forward() { set_order({}); }
  } afterwards;
  for (const Order& order : kOrders) {
    set_order(order);
    test(order);
    if (kFindsRaces) break;
  }
}

}  // namespace sinkstream::cuda::emulator
