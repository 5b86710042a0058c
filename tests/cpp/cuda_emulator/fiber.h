// A call chain with its own stack: `resume` returns when it pauses or ends. Knows no CUDA. A fiber
// stays on the OS thread that created it. One that has not ended may be destroyed; objects on its
// stack are then dropped without destructors.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) || defined(SINKSTREAM_EMULATOR_UCONTEXT)
#include <ucontext.h>
#endif

namespace sinkstream::cuda::emulator {

class Fiber {
 public:
  using Entry = void (*)(void* argument);  // must not throw

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume calls entry(argument), even if the previous call has not ended.
  void begin(Entry entry, void* argument);
  void resume();  // not from a fiber, and not after it has ended
  void pause();   // by the fiber itself
  // Called when it is given up: what it did happened before any later acquire of `address`
  // (sanitizers.h).
  void abandon(void* address);

 private:
#if defined(__x86_64__) && !defined(SINKSTREAM_EMULATOR_UCONTEXT)
  using Context = void*;  // the stack pointer; everything else is on the stack
#else
  using Context = ucontext_t;
#endif

  static void run();  // the first call on a new stack
  static void set(Context* context, std::byte* stack);
  static void change(Context* from, Context* to);

  std::byte* const stack_;  // its lowest byte
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  Context own_ = {};
  Context resumer_ = {};
  bool ended_ = true;
  // Handles of this fiber and its resumer for the sanitizers.
  void* own_known_;
  void* resumer_known_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
};

}  // namespace sinkstream::cuda::emulator
