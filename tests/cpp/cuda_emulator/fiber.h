// A call chain with its own stack. Knows no CUDA. A fiber stays on the OS thread that created it.
// One that has not ended may be destroyed; objects on its stack are then dropped without
// destructors.
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

  // Equal `number`s put the hot ends of stacks into the same sets of the caches.
  explicit Fiber(int number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume calls entry(argument), even if the previous call has not ended.
  void begin(Entry entry, void* argument);
  // Runs it until a fiber pauses or ends: this one, or one that it continued with. Not from a
  // fiber, and not after it has ended.
  void resume();
  void pause();                     // by the fiber itself
  void continue_with(Fiber& next);  // likewise; `next` has not ended
  // Called when it is given up: what it did happened before any later acquire of `address`
  // (sanitizers.h).
  void abandon(void* address);

 private:
#if defined(__x86_64__) && !defined(SINKSTREAM_EMULATOR_UCONTEXT)
  using Context = void*;  // the stack pointer; everything else is on the stack
#else
  using Context = ucontext_t;
#endif

  // What resumed a fiber: an OS thread's own stack.
  struct Resumer {
    Context context = {};
    bool changes = false;  // it resumes a fiber at this moment
    // Its handle and its stack for the sanitizers.
    void* known = nullptr;
    const void* stack = nullptr;
    size_t stack_bytes = 0;
  };

  static void run();  // the first call on a new stack
  static void set(Context* context, std::byte* stack, size_t bytes);
  static void change(Context* from, Context* to);
  static void arrive(void* fake_stack);  // on this fiber's stack
  void start_anew();

  static thread_local Resumer resumer_;

  std::byte* const stack_;   // its lowest byte
  const size_t used_bytes_;  // of the stack
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  Context own_ = {};
  bool ended_ = true;
  void* known_;  // its handle for the sanitizers
};

}  // namespace sinkstream::cuda::emulator
