// How a test controls the emulator: the order of threads and blocks, and launches that fail.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

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

inline constexpr Order kOrders[] = {
    {}, {Order::kReverse, 0, "reverse"}, {Order::kRandom, 20261122, "random"}};

// The order that SINKSTREAM_GPU_ORDER names, as in a run of the quick tests; null: every order.
inline const Order* order_of_run() {
  const char* const set = std::getenv("SINKSTREAM_GPU_ORDER");
  const std::string_view name = set == nullptr ? "" : set;
  if (name.empty()) return nullptr;
  for (const Order& order : kOrders) {
    if (name == order.name) return &order;
  }
  throw std::invalid_argument("SINKSTREAM_GPU_ORDER must be forward, random or reverse, but is \"" +
                              std::string(name) + "\".");
}

// Calls test(order) in `only`, or once per order if that is null. One order is enough to find
// races.
template <typename Test>
void in_orders(const Order* only, const Test& test) {
  struct Forward {
    ~Forward() { set_order({}); }
  } afterwards;
  for (const Order& order : kOrders) {
    if (only != nullptr && order.kind != only->kind) continue;
    set_order(order);
    test(order);
    if (kFindsRaces) break;
  }
}

// For tests of kernels.
template <typename Test>
void in_orders_of_run(const Test& test) {
  in_orders(order_of_run(), test);
}

// For tests of the emulator itself.
template <typename Test>
void in_every_order(const Test& test) {
  in_orders(nullptr, test);
}

}  // namespace sinkstream::cuda::emulator
