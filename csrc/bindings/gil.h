// Releases and acquires the GIL so that a daemon thread survives the interpreter's exit.
//
// Note: [Exit with a daemon thread]
// While the interpreter exits, taking the GIL never returns in any other thread. Up to Python 3.13
// it calls pthread_exit, which unwinds the stack; a destructor on the way that needs the GIL
// terminates the process: that of py::object, or of pybind11's gil_scoped_release and
// gil_scoped_acquire. From 3.14 on the thread hangs instead. What is below does so in every
// version: the thread sleeps until the process has ended.
//
// Running Python code takes the GIL too: the interpreter gives it away and takes it again between
// two instructions. So every call that may run Python code goes through this file.
#pragma once

#include <unistd.h>

#include <pybind11/pybind11.h>

namespace sinkstream {

// Declare one before a call that takes the GIL, and call `done` after it: if pthread_exit unwinds
// the stack, it gets no further than the destructor. (A catch of abi::__forced_unwind would do so
// only where no exception is being handled, or the C++ runtime terminates the process.)
class StopUnwinding {
 public:
  StopUnwinding() = default;
  ~StopUnwinding() {
    while (!is_done_) ::pause();
  }
  StopUnwinding(const StopUnwinding&) = delete;
  StopUnwinding& operator=(const StopUnwinding&) = delete;

  void done() { is_done_ = true; }

 private:
  bool is_done_ = false;
};

// Not inlined into a destructor: that may not throw, so its own cleanup would not be reached.
[[gnu::noinline]] inline void restore_thread(PyThreadState* state) {
  StopUnwinding guard;
  PyEval_RestoreThread(state);
  guard.done();
}

// The result of running Python code. `run` returns a new reference, or null with an error set.
template <typename Run>
pybind11::object run_python(const Run& run) {
  StopUnwinding guard;
  PyObject* result = run();
  guard.done();
  if (result == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(result);
}

inline pybind11::object import_python(const char* module) {
  return run_python([&] { return PyImport_ImportModule(module); });
}

inline pybind11::object call_python(const pybind11::object& callable, const pybind11::tuple& args,
                                    const pybind11::dict& named = {}) {
  return run_python([&] { return PyObject_Call(callable.ptr(), args.ptr(), named.ptr()); });
}

// Without the GIL from here to the end of the block.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { restore_thread(state_); }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

// With the GIL from here to the end of the block. Do not hold a lock that the exiting thread needs.
class AcquireGil {
 public:
  AcquireGil() {
    StopUnwinding guard;
    state_ = PyGILState_Ensure();
    guard.done();
  }
  ~AcquireGil() { PyGILState_Release(state_); }
  AcquireGil(const AcquireGil&) = delete;
  AcquireGil& operator=(const AcquireGil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace sinkstream
