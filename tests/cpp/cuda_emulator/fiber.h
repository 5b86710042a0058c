// One call chain with a stack of its own, run by hand: whoever resumes it waits until it pauses or
// ends. Knows nothing of CUDA. A fiber stays on the operating system's thread that made it; one
// that has not ended may be destroyed, and then what lay on its stack is forgotten, not destroyed.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) || defined(SINKSTREAM_EMULATOR_UCONTEXT)
#include <ucontext.h>
#endif

namespace sinkstream::cuda::emulator {

class Fiber {
 public:
  using Entry = void (*)(void* argument);  // throws nothing

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume calls entry(argument), whatever became of the one before.
  void begin(Entry entry, void* argument);
  void resume();  // by anybody but a fiber; not after it has ended
  void pause();   // by the fiber itself
  // By who gives it up: what it did has happened for whoever acquires `address` (sanitizers.h).
  void abandon(void* address);

 private:
#if defined(__x86_64__) && !defined(SINKSTREAM_EMULATOR_UCONTEXT)
  using Context = void*;  // the stack pointer; everything else lies on the stack
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
  // What the sanitizers know this fiber and its resumer by.
  void* own_known_;
  void* resumer_known_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
};

}  // namespace sinkstream::cuda::emulator
