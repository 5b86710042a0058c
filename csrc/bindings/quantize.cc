// Rounds rows for files that are written from Python.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "bindings/builder.h"
#include "bindings/gil.h"
#include "bindings/register.h"
#include "common/check.h"
#include "kernels/quantize.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

py::object quantize_rows(Storage from, const py::bytes& rows, int64_t cols, Storage to) {
  const auto content = std::string_view(rows);
  SINKSTREAM_CHECK(
      can_quantize_to(to) && row_of(from).block == 1 && cols > 0 && cols % row_of(to).block == 0,
      "rows of ", cols, " cannot become ", row_of(to).name);
  const int64_t row_bytes = row_bytes_of(from, cols), block_bytes = row_bytes_of(to, cols);
  const int64_t count = static_cast<int64_t>(content.size()) / row_bytes;
  py::bytes out(nullptr, count * block_bytes);
  auto* target = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(out.ptr()));
  const auto* source = reinterpret_cast<const std::byte*>(content.data());
  bool fits = true;
  {
    const ReleaseGil released;
    for (int64_t row = 0; row < count && fits; ++row) {
      fits = quantize_row(from, source + row * row_bytes, cols, to, target + row * block_bytes);
    }
  }
  if (!fits) return py::none();
  return out;
}

}  // namespace

void register_quantize(py::module_& module) {
  module.def(
      "quantize_rows",
      [](const std::string& from, const py::bytes& rows, int64_t cols, const std::string& to) {
        return quantize_rows(storage_of(from), rows, cols, storage_of(to));
      },
      py::arg("from_storage"), py::arg("rows"), py::arg("cols"), py::arg("to_storage"),
      "Round rows of 16- or 32-bit numbers to one of `quantizable`, as loading does; None if a "
      "number is NaN, infinite or too large. Other threads run meanwhile.");
}

}  // namespace sinkstream
