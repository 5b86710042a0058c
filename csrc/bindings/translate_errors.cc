// Translates the core's exceptions into those of python/sinkstream/errors.py, by name.
#include "common/errors.h"

#include <pybind11/pybind11.h>

#include "bindings/gil.h"
#include "bindings/register.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

py::object make_error(const char* name, const Error& error) {
  py::dict named;
  if (!error.param.empty()) named["param"] = error.param;
  return call_python(import_python("sinkstream.errors").attr(name), py::make_tuple(error.what()),
                     named);
}

void raise(const py::object& error) { PyErr_SetObject(py::type::of(error).ptr(), error.ptr()); }

void set_error(const char* name, const Error& error) { raise(make_error(name, error)); }

void translate(std::exception_ptr thrown) {
  if (!thrown) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const InvalidArgument& error) {
    set_error("InvalidArgument", error);
  } catch (const CheckpointError& error) {
    set_error("CheckpointError", error);
  } catch (const CapacityError& error) {
    set_error("CapacityError", error);
  } catch (const SessionBusy& error) {
    set_error("SessionBusy", error);
  } catch (const NonFiniteLogits& error) {
    const py::object made = make_error("NonFiniteLogits", error);
    if (error.index >= 0) made.attr("index") = error.index;
    raise(made);
  } catch (const DeviceError& error) {
    set_error("DeviceError", error);
  } catch (const EngineDead& error) {
    // Not always an EngineDead: see python/sinkstream/errors.py.
    raise(call_python(import_python("sinkstream.errors").attr("engine_dead"),
                      py::make_tuple(error.what())));
  } catch (const ForkError& error) {
    set_error("ForkError", error);
  } catch (const Error& error) {  // a bug in sinkstream
    set_error("SinkstreamError", error);
  }
}

}  // namespace

void register_errors(py::module_&) { py::register_local_exception_translator(&translate); }

}  // namespace sinkstream
