// Takes a model's description and weights from Python.
#include "bindings/builder.h"

#include <pybind11/stl.h>

#include <chrono>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/gil.h"
#include "bindings/register.h"
#include "common/check.h"
#include "common/errors.h"
#include "kernels/quantize.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

DecoderSpec spec_of(const py::dict& fields) {
  const auto whole = [&](const char* name) { return fields[name].cast<int64_t>(); };
  const auto flag = [&](const char* name) { return fields[name].cast<bool>(); };
  const auto rope = fields["rope"].cast<py::dict>();
  DecoderSpec spec;
  spec.vocab_size = whole("vocab_size");
  spec.hidden_size = whole("hidden_size");
  spec.intermediate_size = whole("intermediate_size");
  spec.layers = whole("layers");
  spec.heads = whole("heads");
  spec.kv_heads = whole("kv_heads");
  spec.head_dim = whole("head_dim");
  spec.norm_eps = fields["norm_eps"].cast<float>();
  spec.inverse_frequencies = rope["inverse_frequencies"].cast<std::vector<double>>();
  spec.pairing =
      rope["pairing"].cast<std::string>() == "interleaved" ? Pairing::kInterleaved : Pairing::kHalf;
  spec.attention_factor = rope["attention_factor"].cast<double>();
  spec.qkv_bias = flag("qkv_bias");
  spec.output_bias = flag("output_bias");
  spec.mlp_bias = flag("mlp_bias");
  spec.qk_norm = flag("qk_norm");
  spec.tie_embeddings = flag("tie_embeddings");
  spec.own_windows = fields["own_windows"].cast<std::vector<int64_t>>();
  return spec;
}

// (name, rows, cols) of each weight.
std::vector<std::tuple<std::string, int64_t, int64_t>> list_weights(const py::dict& fields) {
  DecoderWeights weights;
  std::vector<std::tuple<std::string, int64_t, int64_t>> found;
  for (WeightSlot& slot : weight_slots(spec_of(fields), &weights)) {
    found.emplace_back(std::move(slot.name), slot.rows, slot.cols);
  }
  return found;
}

void start_reading(ModelBuilder& self,
                   const std::vector<std::tuple<std::string, int, int64_t>>& extents, int threads) {
  self.store.allocate();
  std::vector<WeightExtent> found;
  found.reserve(extents.size());
  for (const auto& [weight, descriptor, offset] : extents) {
    found.push_back({.weight = weight, .descriptor = descriptor, .offset = offset});
  }
  self.reader = std::make_unique<WeightReader>(&self.store, std::move(found), threads);
}

WeightReader& reader_of(ModelBuilder& self) {
  SINKSTREAM_CHECK(self.reader != nullptr, "no weights are being read");
  return *self.reader;
}

}  // namespace

Storage storage_of(const std::string& name) {
  for (const StorageRow& row : kStorageRows) {
    if (row.name == name) return row.storage;
  }
  throw CheckpointError(
      cat("load: a weight's storage must be one that `storages` returns, but is ", name, "."));
}

ModelBuilder::ModelBuilder(const py::dict& fields) : spec(spec_of(fields)), store(spec) {
  validate(spec);
}

void register_builder(py::module_& module) {
  module.def(
      "storages",
      [] {
        py::dict blocks;
        for (const StorageRow& row : kStorageRows) {
          blocks[py::str(row.name.data(), row.name.size())] = py::make_tuple(row.block, row.bytes);
        }
        return blocks;
      },
      "Return the numbers in a block, and its bytes, for each number format of files by name.");
  module.def(
      "quantizable",
      [] {
        std::vector<std::string_view> names;
        for (const StorageRow& row : kStorageRows) {
          if (can_quantize_to(row.storage)) names.push_back(row.name);
        }
        return names;
      },
      "List the number formats that weights can be rounded to as they are read.");
  module.def("weight_slots", &list_weights, py::arg("spec"),
             "List the name, rows and columns of every weight that a decoder needs, in loading "
             "order. A vector has one column.");
  py::class_<ModelBuilder>(module, "ModelBuilder", "Collects a model's description and weights.")
      .def(py::init<const py::dict&>(), py::arg("spec"))
      .def(
          "declare",
          [](ModelBuilder& self, const std::string& weight, const std::string& file,
             const std::string& storage, int64_t rows, int64_t cols) {
            self.store.declare(weight, storage_of(file), storage_of(storage), rows, cols);
          },
          py::arg("weight"), py::arg("file"), py::arg("storage"), py::arg("rows"), py::arg("cols"),
          "Declare a weight: how the file stores it, and how it is kept. If these differ, it is "
          "rounded as it is read, to one of `quantizable`.")
      .def("read", &start_reading, py::arg("extents"), py::arg("threads"),
           "Allocate memory, and start to read every weight into it in the background. `extents`: "
           "name, file descriptor and offset of each weight.")
      .def(
          "wait",
          [](ModelBuilder& self, double at_most_s) {
            WeightReader& reader = reader_of(self);
            const ReleaseGil released;
            return reader.wait(std::chrono::milliseconds(static_cast<int64_t>(at_most_s * 1000)));
          },
          py::arg("at_most_s"),
          "Wait up to that long for reading to end, and return whether it has.")
      .def_property_readonly("bytes_read",
                             [](ModelBuilder& self) { return reader_of(self).bytes_read(); })
      .def_property_readonly(
          "unread",
          [](ModelBuilder& self) -> py::object {
            const std::optional<UnreadRows>& rows = reader_of(self).unread();
            if (!rows) return py::none();
            return py::make_tuple(rows->weight, rows->begin, rows->end);
          },
          "Name of the weight, first row and end row that could not be read; None if all were "
          "read.")
      .def(
          "stop_reading",
          [](ModelBuilder& self) {
            const ReleaseGil released;
            self.reader.reset();
          },
          "Stop reading, and wait until all files are free. May be called at any time.");
}

}  // namespace sinkstream
