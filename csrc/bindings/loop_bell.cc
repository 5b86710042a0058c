// The bell class: python/sinkstream/streams/aio.py adds its descriptor to an event loop.
#include "engine/loop_bell.h"

#include <cerrno>
#include <memory>
#include <system_error>

#include <pybind11/pybind11.h>

#include "bindings/register.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

std::shared_ptr<LoopBell> make_loop_bell() {
  try {
    return std::make_shared<LoopBell>();
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
    throw py::error_already_set();
  }
}

}  // namespace

void register_loop_bell(py::module_& module) {
  py::class_<LoopBell, std::shared_ptr<LoopBell>>(module, "LoopBell",
                                                  "Wakes one event loop through a file descriptor.")
      .def(py::init(&make_loop_bell))
      .def("fileno", &LoopBell::fd)
      .def("clear", &LoopBell::clear);
}

}  // namespace sinkstream
