// Which kernel tables there are, and which serves which op.
#include "kernels/kernels.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"

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
  module.def("usable_threads", &usable_threads,
             "Count the cores that the affinity mask and the CPU quota allow.");
}

}  // namespace sinkstream
