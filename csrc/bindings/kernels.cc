// Which kernel tables there are, and which serves which op.
#include "kernels/kernels.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <vector>

#include "bindings/register.h"
#include "common/errors.h"
#include "common/usable_threads.h"
#include "device/buffer.h"
#include "kernels/cuda/gpu.h"
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

void register_kernels(py::module_& module) {
  module.def(
      "kernel_tables",
      [] {
        std::vector<std::pair<std::string, bool>> tables;
        for (const Kernels* table : all_kernels()) {
          tables.emplace_back(table->name, table->supported());
        }
        return tables;
      },
      "List (name, supported here) of every kernel table of this build, best first.");
  module.def(
      "kernel_refusals",
      [] {
        std::map<std::string, std::string> reasons;
        for (const Kernels* table : all_kernels()) {
          const char* reason = table->refusal == nullptr ? nullptr : table->refusal();
          if (reason != nullptr) reasons[table->name] = reason;
        }
        return reasons;
      },
      "Say by name why the system withholds a kernel table that the processor could run.");
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
  module.def(
      "find_gpu",
      [](const std::string& library) {
        const cuda::GpuSearch found = cuda::find_gpu(library);
        const cuda::GpuFacts& facts = found.facts;
        py::dict gpu;
        gpu["problem"] = found.problem;
        gpu["name"] = facts.name;
        gpu["capability"] = py::make_tuple(facts.major, facts.minor);
        gpu["multiprocessors"] = facts.multiprocessors;
        gpu["total_bytes"] = facts.total_bytes;
        gpu["free_bytes"] = facts.free_bytes;
        return gpu;
      },
      py::arg("library"),
      "Say what GPU there is for the CUDA kernels in `library`, or why there is none.");
  module.def("usable_threads", &usable_threads,
             "Count the cores that the affinity mask and the CPU quota allow.");
}

}  // namespace sinkstream
