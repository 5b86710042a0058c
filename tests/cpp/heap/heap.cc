#include "heap/heap.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace sinkstream {
namespace {

std::atomic<int64_t> count{0};

thread_local int64_t succeeding = 0;
thread_local int64_t failing = 0;
std::atomic<int64_t> failed{0};

bool must_fail() {
  if (failing == 0) return false;
  if (succeeding > 0) {
    --succeeding;
    return false;
  }
  --failing;
  ++failed;
  return true;
}

}  // namespace

int64_t allocations() { return count; }

void fail_allocations(int64_t after, int64_t failures) {
  succeeding = after;
  failing = failures;
}

int64_t failed_allocations() { return failed; }

}  // namespace sinkstream

// For the entire program. The standard library's array and nothrow forms call these; csrc allocates
// by no other means.
void* operator new(std::size_t bytes) {
  ++sinkstream::count;
  if (!sinkstream::must_fail()) {
    if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  }
  throw std::bad_alloc();
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++sinkstream::count;
  void* memory = nullptr;
  if (!sinkstream::must_fail() &&
      posix_memalign(&memory, static_cast<std::size_t>(alignment), bytes > 0 ? bytes : 1) == 0) {
    return memory;
  }
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
