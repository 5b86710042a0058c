// Tells the sanitizers about fibers; does nothing in a build without one. The emulator's own files
// are never compiled with -fsanitize=thread, so macros say which sanitizer the build has.
#pragma once

#include <cstddef>

#if defined(SINKSTREAM_SANITIZE_ADDRESS)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(SINKSTREAM_SANITIZE_THREAD)
#include <sanitizer/tsan_interface.h>
#endif

namespace sinkstream::cuda::emulator {

#if defined(SINKSTREAM_SANITIZE_THREAD)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

#if defined(SINKSTREAM_SANITIZE_ADDRESS)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

// The address sanitizer tracks stacks. `fake_stack` saves the state of the stack being left; null
// if it is never resumed. The thread sanitizer tracks fibers, and must not take a switch for
// synchronization.
[[gnu::always_inline]] inline void before_change([[maybe_unused]] void** fake_stack,
                                                 [[maybe_unused]] const void* to_stack,
                                                 [[maybe_unused]] size_t to_bytes,
                                                 [[maybe_unused]] void* to_fiber) {
#if defined(SINKSTREAM_SANITIZE_ADDRESS)
  __sanitizer_start_switch_fiber(fake_stack, to_stack, to_bytes);
#elif defined(SINKSTREAM_SANITIZE_THREAD)
  __tsan_switch_to_fiber(to_fiber, __tsan_switch_to_fiber_no_sync);
#endif
}

[[gnu::always_inline]] inline void after_change([[maybe_unused]] void* fake_stack,
                                                [[maybe_unused]] const void** from_stack,
                                                [[maybe_unused]] size_t* from_bytes) {
#if defined(SINKSTREAM_SANITIZE_ADDRESS)
  __sanitizer_finish_switch_fiber(fake_stack, from_stack, from_bytes);
#endif
}

inline void unpoison([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#if defined(SINKSTREAM_SANITIZE_ADDRESS)
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

inline void* create_known_fiber() {
#if defined(SINKSTREAM_SANITIZE_THREAD)
  return __tsan_create_fiber(0);
#else
  return nullptr;
#endif
}

inline void destroy_known_fiber([[maybe_unused]] void* fiber) {
#if defined(SINKSTREAM_SANITIZE_THREAD)
  __tsan_destroy_fiber(fiber);
#endif
}

inline void* known_fiber() {
#if defined(SINKSTREAM_SANITIZE_THREAD)
  return __tsan_get_current_fiber();
#else
  return nullptr;
#endif
}

// What was done before a release of `address` happens before any later acquire of it.
inline void release([[maybe_unused]] void* address) {
#if defined(SINKSTREAM_SANITIZE_THREAD)
  __tsan_release(address);
#endif
}

// The same on behalf of `fiber`, which does not release by itself.
inline void release_for([[maybe_unused]] void* fiber, [[maybe_unused]] void* address) {
#if defined(SINKSTREAM_SANITIZE_THREAD)
  void* self = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
  __tsan_release(address);
  __tsan_switch_to_fiber(self, __tsan_switch_to_fiber_no_sync);
#endif
}

inline void acquire([[maybe_unused]] void* address) {
#if defined(SINKSTREAM_SANITIZE_THREAD)
  __tsan_acquire(address);
#endif
}

}  // namespace sinkstream::cuda::emulator
