// Takes a model's description and weights from Python.
#include "bindings/builder.h"

#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
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

// Descriptor, offset, bytes of a run and from run to run, as in TensorPlace.
using Places = std::vector<std::tuple<int, int64_t, int64_t, int64_t>>;

void start_reading(ModelBuilder& self, const std::vector<std::pair<std::string, Places>>& extents,
                   int threads) {
  self.store.allocate();
  std::vector<WeightExtent> found;
  found.reserve(extents.size());
  for (const auto& [weight, places] : extents) {
    SINKSTREAM_CHECK(places.size() <= kSplitTensors, "weight ", weight, " has ", places.size(),
                     " tensors");
    WeightExtent& extent = found.emplace_back();
    extent.weight = weight;
    for (size_t i = 0; i < places.size(); ++i) {
      const auto [descriptor, offset, run_bytes, stride_bytes] = places[i];
      SINKSTREAM_CHECK(run_bytes >= 0 && stride_bytes >= run_bytes, "weight ", weight,
                       " has runs of ", run_bytes, " bytes, ", stride_bytes, " apart");
      extent.tensors[i] = {.descriptor = descriptor,
                           .offset = offset,
                           .run_bytes = run_bytes,
                           .stride_bytes = stride_bytes};
    }
  }
  self.reader = std::make_unique<WeightReader>(&self.store, std::move(found), threads);
}

SplitLayout layout_of(const std::string& name) {
  if (name == "awq") return SplitLayout::kAwq;
  if (name == "gptq") return SplitLayout::kGptq;
  SINKSTREAM_CHECK(name == "rows", "there is no layout ", name);
  return SplitLayout::kRows;
}

void declare_split(ModelBuilder& self, const std::string& weight, const std::string& layout,
                   const std::string& storage, const std::string& scale_type, int64_t group,
                   int64_t scale_rows, bool has_zero_points, int zero_point, int64_t rows,
                   int64_t cols, const std::string& order) {
  const SplitFormat format = {.layout = layout_of(layout),
                              .storage = storage_of(storage),
                              .scale_type = storage_of(scale_type),
                              .group = group,
                              .scale_rows = scale_rows,
                              .has_zero_points = has_zero_points,
                              .zero_point = zero_point};
  std::vector<int32_t> columns(order.size() / sizeof(int32_t));
  std::memcpy(columns.data(), order.data(), columns.size() * sizeof(int32_t));
  self.store.declare_split(weight, format, rows, cols, std::move(columns));
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
          if (row.is_split) continue;
          blocks[py::str(row.name.data(), row.name.size())] = py::make_tuple(row.block, row.bytes);
        }
        return blocks;
      },
      "Return the numbers in a block, and its bytes, for each number format of files by name. "
      "Formats whose scales are tensors of their own are not among them.");
  module.def(
      "split_row_bytes",
      [](const std::string& storage, int64_t cols, int64_t group) {
        const SplitFormat format = {.storage = storage_of(storage), .group = group};
        const WeightType type = weight_type_of(format.storage);
        return divide_up(panel_bytes(type, cols, split_block(format, cols)), kPanelRows);
      },
      py::arg("storage"), py::arg("cols"), py::arg("group"),
      "Return the bytes of a row in memory, with scales of its own for every `group` columns.");
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
             const std::string& storage, int64_t rows, int64_t cols, float added) {
            self.store.declare(weight, storage_of(file), storage_of(storage), rows, cols, added);
          },
          py::arg("weight"), py::arg("file"), py::arg("storage"), py::arg("rows"), py::arg("cols"),
          py::arg("added") = 0.0f,
          "Declare a weight: how the file stores it, and how it is kept. If these differ, it is "
          "rounded as it is read, to one of `quantizable`. `added`: to each number of a vector.")
      .def("declare_split", &declare_split, py::arg("weight"), py::kw_only(), py::arg("layout"),
           py::arg("storage"), py::arg("scale_type"), py::arg("group"), py::arg("scale_rows"),
           py::arg("has_zero_points"), py::arg("zero_point"), py::arg("rows"), py::arg("cols"),
           py::arg("order"),
           "Declare a matrix whose codes, scales and zero points are tensors of their own; see "
           "csrc/kernels/pack_split.h. `order`: int32 of its columns in the order of their groups, "
           "or empty.")
      .def("read", &start_reading, py::arg("extents"), py::arg("threads"),
           "Allocate memory, and start to read every weight into it in the background. `extents`: "
           "the name of each weight, and of each of its tensors the file descriptor, the offset, "
           "the "
           "bytes of a run of its rows (0: they are contiguous) and the bytes from run to run.")
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
