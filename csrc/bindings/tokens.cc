// The table from token ids to bytes, which Python builds once for each model.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "sampling/detokenizer.h"

namespace py = pybind11;

namespace sinkstream {

void register_tokens(py::module_& module) {
  py::class_<TokenTable, std::shared_ptr<TokenTable>>(module, "TokenTable",
                                                      "The bytes of every token.")
      .def(py::init([](const std::vector<std::string>& pieces, const std::vector<int64_t>& special,
                       bool strip_leading_space) {
             std::vector<uint8_t> flags(pieces.size(), 0);
             for (const int64_t id : special) {
               if (id >= 0 && id < static_cast<int64_t>(flags.size())) flags[id] = 1;
             }
             return std::make_shared<TokenTable>(pieces, flags, strip_leading_space);
           }),
           py::arg("pieces"), py::arg("special"), py::arg("strip_leading_space"));
}

}  // namespace sinkstream
