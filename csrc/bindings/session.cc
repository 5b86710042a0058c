// The session class: what python/sinkstream/session.py is built on. What needs the engine is a
// method of the model.
#include "bindings/session.h"

#include <pybind11/pybind11.h>

#include "bindings/register.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

py::dict stats_of(const SessionHandle& self) {
  const SessionStats stats = self.session()->stats();
  py::dict fields;
  fields["turns"] = stats.turns;
  fields["tokens"] = stats.tokens;
  fields["live_tokens"] = stats.live_tokens;
  fields["evicted_tokens"] = stats.evicted_tokens;
  fields["cache_bytes"] = stats.cache_bytes;
  return fields;
}

}  // namespace

void register_session(py::module_& module) {
  py::class_<SessionHandle>(module, "Session", "A conversation that keeps its cache.")
      .def("close", [](SessionHandle& self) { self.session()->close(); })
      .def("stats", &stats_of)
      .def_property_readonly("is_closed",
                             [](const SessionHandle& self) { return self.session()->is_closed(); })
      .def_property_readonly(
          "sinks", [](const SessionHandle& self) { return self.session()->window().sinks; })
      .def_property_readonly(
          "window", [](const SessionHandle& self) { return self.session()->window().window; });
}

}  // namespace sinkstream
