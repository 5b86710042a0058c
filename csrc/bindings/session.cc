// The session class that python/sinkstream/sessions/session.py wraps. Operations that need the
// engine are methods of the model.
#include "bindings/session.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/gil.h"
#include "bindings/register.h"
#include "common/check.h"

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
  fields["unread_tokens"] = stats.unread_tokens;
  return fields;
}

}  // namespace

py::dict contents_of(Engine& engine, const SessionHandle& session) {
  SessionState state;
  py::array_t<uint8_t> keys_values;
  py::array_t<float> scales;
  py::array_t<uint8_t> states;
  {
    const ReleaseGil released;
    engine.read_session(*session.session(), [&](const Session& held) {
      const SnapshotShape shape = snapshot_shape(*held.cache);
      state = held.state();
      uint8_t* bytes;
      float* scale = nullptr;
      uint8_t* of_layers;
      {
        const AcquireGil acquired;
        keys_values = py::array_t<uint8_t>(shape.bytes());
        scales = py::array_t<float>(shape.scale_bytes() / int64_t{sizeof(float)});
        bytes = keys_values.mutable_data();
        if (scales.size() > 0) scale = scales.mutable_data();
        states = py::array_t<uint8_t>(shape.state_bytes());
        of_layers = states.mutable_data();
      }
      snapshot(*held.cache, reinterpret_cast<std::byte*>(bytes), scale,
               reinterpret_cast<std::byte*>(of_layers));
    });
  }
  py::dict contents;
  contents["length"] = state.sequence.length;
  contents["begins"] = state.sequence.begins;
  contents["ids"] = state.ids;
  contents["pending"] = state.pending;
  contents["turns"] = state.turns;
  contents["keys_values"] = keys_values;
  contents["scales"] = scales;
  contents["states"] = states;
  return contents;
}

std::unique_ptr<SessionHandle> restore_session(Engine& engine, int64_t sinks,
                                               const py::dict& contents, std::string cache_salt) {
  SessionState state;
  state.sequence.length = contents["length"].cast<int64_t>();
  state.sequence.begins = contents["begins"].cast<std::vector<int64_t>>();
  state.length = state.sequence.length;
  state.ids = contents["ids"].cast<std::vector<int32_t>>();
  state.pending = contents["pending"].cast<std::optional<int32_t>>();
  state.turns = contents["turns"].cast<int64_t>();
  const auto keys_values = contents["keys_values"].cast<py::array_t<uint8_t, py::array::c_style>>();
  const auto scales = contents["scales"].cast<py::array_t<float, py::array::c_style>>();
  const auto states = contents["states"].cast<py::array_t<uint8_t, py::array::c_style>>();
  const auto* bytes = reinterpret_cast<const std::byte*>(keys_values.data());
  const auto* of_layers = reinterpret_cast<const std::byte*>(states.data());
  const float* scale = scales.size() > 0 ? scales.data() : nullptr;
  const int64_t byte_count = keys_values.size(), scale_count = scales.size();
  const int64_t state_count = states.size();
  const ReleaseGil released;
  return std::make_unique<SessionHandle>(engine.restore_session(
      sinks, state,
      [&](SequenceCache* cache) {
        SINKSTREAM_CHECK(std::ssize(state.sequence.begins) == cache->group_count(),
                         "a saved session has ", state.sequence.begins.size(), " groups of layers");
        const SnapshotShape shape = snapshot_shape(*cache, state.sequence);
        SINKSTREAM_CHECK(shape.bytes() == byte_count &&
                             shape.scale_bytes() == scale_count * int64_t{sizeof(float)} &&
                             shape.state_bytes() == state_count,
                         "a saved session has ", byte_count, " bytes, ", scale_count,
                         " scales and ", state_count, " bytes of states");
        restore(cache, state.sequence, bytes, scale, of_layers);
      },
      std::move(cache_salt)));
}

void register_session(py::module_& module) {
  module.attr("UNDONE_TOKENS") = kUndoneTokens;
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
