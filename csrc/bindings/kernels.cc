// The kernel tables of this build, and the GPU that its CUDA kernels can run on.
#include "kernels/choose.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <vector>

#include "bindings/register.h"
#include "common/errors.h"
#include "common/usable_threads.h"
#include "kernels/cuda/gpu.h"

namespace py = pybind11;

namespace sinkstream {

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
      "Return by name why the system withholds a kernel table that the processor could run.");
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
        gpu["driver_compiles"] = found.driver_compiles;
        return gpu;
      },
      py::arg("library"),
      "Return the GPU for the CUDA kernels in `library`, or why there is none.");
  module.def("usable_threads", &usable_threads,
             "Count the logical CPUs that the affinity mask and the CPU quota allow.");
}

}  // namespace sinkstream
