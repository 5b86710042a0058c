// Releases and acquires the GIL so that a daemon thread survives the interpreter's exit.
//
// Note: [Exit with a daemon thread]
// While the interpreter exits, taking the GIL never returns in any other thread. Up to Python 3.13
// it calls pthread_exit, which unwinds the stack; a destructor on the way terminates the process,
// as that of pybind11's gil_scoped_release does. From 3.14 on the thread hangs instead. The classes
// below do so in every version: the thread sleeps until the process has ended.
#pragma once

#include <cxxabi.h>
#include <unistd.h>

#include <pybind11/pybind11.h>

namespace sinkstream {

// Calls `take`, which takes the GIL. Does not return if the interpreter exits first.
template <typename Take>
auto take_gil(const Take& take) {
#ifdef __GLIBCXX__
  try {
    return take();
  } catch (abi::__forced_unwind&) {  // of pthread_exit; it must not leave this block
    for (;;) ::pause();
  }
#else
  return take();
#endif
}

// Without the GIL from here to the end of the block.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() {
    take_gil([&] { PyEval_RestoreThread(state_); });
  }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

// With the GIL from here to the end of the block. Do not hold a lock that the exiting thread needs.
class AcquireGil {
 public:
  AcquireGil() : state_(take_gil([] { return PyGILState_Ensure(); })) {}
  ~AcquireGil() { PyGILState_Release(state_); }
  AcquireGil(const AcquireGil&) = delete;
  AcquireGil& operator=(const AcquireGil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace sinkstream
