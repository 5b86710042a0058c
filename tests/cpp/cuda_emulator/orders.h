// What a test says to the emulator: in which order threads and blocks take turns, and that a launch
// is to fail.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "kernels/cuda/stream.h"

namespace sinkstream::cuda::emulator {

// What a kernel may not do: wait for ever, meet in different places, leave a copy behind.
struct Fault : std::logic_error {
  using std::logic_error::logic_error;
};

// Threads change places only where they wait for each other. kForward takes the lowest that can go
// on, kReverse the highest, kRandom any; blocks the same.
struct Order {
  enum Kind { kForward, kReverse, kRandom } kind = kForward;
  uint64_t seed = 1;  // of kRandom
  const char* name = "forward";
};

// Launches of this thread take `order` from now on. kForward is what they begin with.
void set_order(const Order& order);

// The next launch of this thread runs nothing and returns `status`.
void fail_next_launch(Status status);

// Whether this build looks for races, twenty times as slowly: tests take small shapes then.
#if defined(__SANITIZE_THREAD__)
constexpr bool kFindsRaces = true;
#else
constexpr bool kFindsRaces = false;
#endif

// Calls test(order) once for each order. Races are found in one.
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
