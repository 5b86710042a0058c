// sinkstream._core.probes: memory bandwidth and peak arithmetic of this machine, for benchmarks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/gil.h"
#include "bindings/register.h"
#include "common/errors.h"
#include "device/buffer.h"
#include "kernels/table.h"
#include "probes/bandwidth.h"
#include "probes/peak.h"

namespace py = pybind11;

namespace sinkstream {
namespace {

// The kernel table `amx` requests tile registers from the system, once per process.
void check_for_tiles() {
#if defined(__x86_64__)
  if (amx_kernels().supported()) return;
#endif
  throw InvalidArgument(
      "peak_rate: `tiles` must be False in a process without tile registers, but is True.",
      "tiles");
}

// Keeps its memory between reads: freeing it would keep the system busy for a while and disturb the
// next measurement.
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
      "probes", "Memory bandwidth and peak arithmetic of this machine, for benchmarks.");
  module.def(
      "read_rate",
      [](int64_t count, int threads) {
        const ReleaseGil released;
        const Buffer memory(count, "the read probe");
        ThreadPool pool(threads);
        return read_rate(memory.data(), count, &pool);
      },
      py::arg("count"), py::arg("threads"),
      "Read `count` bytes of memory with two prefetch patterns, and return the bytes per second of "
      "the faster: the bound on a decode step.");
  module.def(
      "sustained_read_rate",
      [](int64_t count, int threads, double seconds) {
        const ReleaseGil released;
        const Buffer memory(count, "the read probe");
        ThreadPool pool(threads);
        return sustained_read_rate(memory.data(), count, &pool, seconds);
      },
      py::arg("count"), py::arg("threads"), py::arg("seconds"),
      "Read `count` bytes of memory repeatedly for `seconds`, with the faster of two prefetch "
      "patterns, and return the mean bytes per second.");
  py::class_<PlainReads>(module, "PlainReads",
                         "Memory that is read repeatedly: shows how steady the bandwidth is.")
      .def(py::init<int64_t>(), py::arg("count"), py::call_guard<ReleaseGil>())
      .def("times", &PlainReads::times, py::arg("threads"), py::arg("reads"),
           py::call_guard<ReleaseGil>(),
           "Read all of it `reads` times with the faster of two prefetch patterns; return the "
           "seconds of each read.");
  module.def(
      "peak_rate",
      [](int threads, bool tiles) {
        const ReleaseGil released;
        if (tiles) check_for_tiles();
        ThreadPool pool(threads);
        // About a tenth of a second.
        const Peak peak = tiles ? peak_rate(&pool, 18000000, PeakUnit::kTiles)
                                : peak_rate(&pool, 400000000, PeakUnit::kVectors);
        return std::pair<std::string, double>(peak.instruction, peak.rate);
      },
      py::arg("threads"), py::arg("tiles") = false,
      "Multiply and add in vector or tile registers; return (instruction, operations per second). "
      "Raises ValueError if `tiles` is set and this process has no tile registers.");
}

}  // namespace sinkstream
