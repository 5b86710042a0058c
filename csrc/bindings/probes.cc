// sinkstream._core.probes: what this machine reads and multiplies at best, for benchmarks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/register.h"
#include "common/errors.h"
#include "device/buffer.h"
#include "kernels/kernels.h"
#include "probes/peak.h"
#include "probes/read.h"

namespace py = pybind11;

namespace sinkstream {
namespace {

// The table amx asks the system for tile registers, once for the process.
void check_for_tiles() {
#if defined(__x86_64__)
  if (amx_kernels().supported()) return;
#endif
  throw InvalidArgument(
      "peak_rate: `tiles` must be False where this process has no tile registers, but is True.",
      "tiles");
}

// Keeps its memory between reads: memory that is given back keeps the system busy for a while, and
// what is measured next with it.
class PlainReads {
 public:
  explicit PlainReads(int64_t count) : memory_(count, "the read probe") {}

  std::vector<double> times(int threads, int64_t reads) const {
    ThreadPool pool(threads);
    return read_times(memory_.data(), memory_.bytes(), &pool, reads);
  }

 private:
  Buffer memory_;
};

}  // namespace

void register_probes(py::module_& core) {
  py::module_ module = core.def_submodule(
      "probes", "What this machine reads and multiplies at best, for benchmarks.");
  module.def(
      "read_rate",
      [](int64_t count, int threads) {
        const py::gil_scoped_release release;
        const Buffer memory(count, "the read probe");
        ThreadPool pool(threads);
        return read_rate(memory.data(), count, &pool);
      },
      py::arg("count"), py::arg("threads"),
      "Read `count` bytes of memory, asking ahead in two ways, and return the faster one's bytes a "
      "second: what bounds a token's forward.");
  module.def(
      "sustained_read_rate",
      [](int64_t count, int threads, double seconds) {
        const py::gil_scoped_release release;
        const Buffer memory(count, "the read probe");
        ThreadPool pool(threads);
        return sustained_read_rate(memory.data(), count, &pool, seconds);
      },
      py::arg("count"), py::arg("threads"), py::arg("seconds"),
      "Read `count` bytes of memory in the faster of two ways, again and again until `seconds` are "
      "over, and return the mean bytes a second.");
  py::class_<PlainReads>(module, "PlainReads",
                         "Memory that is read whole, again and again: how evenly a machine gives "
                         "what a token needs.")
      .def(py::init<int64_t>(), py::arg("count"), py::call_guard<py::gil_scoped_release>())
      .def("times", &PlainReads::times, py::arg("threads"), py::arg("reads"),
           py::call_guard<py::gil_scoped_release>(),
           "Read all of it in the faster of two ways, `reads` times, and return the seconds of "
           "each.");
  module.def(
      "peak_rate",
      [](int threads, bool tiles) {
        const py::gil_scoped_release release;
        if (tiles) check_for_tiles();
        ThreadPool pool(threads);
        // About a tenth of a second.
        const Peak peak = tiles ? peak_rate(&pool, 18000000, PeakUnit::kTiles)
                                : peak_rate(&pool, 400000000, PeakUnit::kVectors);
        return std::pair<std::string, double>(peak.instruction, peak.rate);
      },
      py::arg("threads"), py::arg("tiles") = false,
      "Multiply and add in registers, of vectors or of tiles, and return (instruction, operations "
      "a second). Raises ValueError for tiles that this process does not have.");
}

}  // namespace sinkstream
