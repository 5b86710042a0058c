// Takes a model's description and weights from Python.
#include "bindings/builder.h"

#include <malloc.h>
#include <pybind11/stl.h>

#include "bindings/register.h"
#include "common/errors.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

Storage storage_of(const std::string& name) {
  if (name == "F32") return Storage::kF32;
  if (name == "F16") return Storage::kF16;
  if (name == "BF16") return Storage::kBF16;
  if (name == "Q8_0") return Storage::kQ8_0;
  if (name == "Q4_0") return Storage::kQ4_0;
  if (name == "Q4_1") return Storage::kQ4_1;
  throw CheckpointError(
      cat("load: a weight's storage must be one of BF16, F16, F32, Q4_0, Q4_1, "
          "Q8_0, but is ",
          name, "."));
}

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
  validate(spec);
  return spec;
}

}  // namespace

ModelBuilder::ModelBuilder(const py::dict& fields) : spec(spec_of(fields)), store(spec) {}

void register_builder(py::module_& module) {
  py::class_<ModelBuilder>(module, "ModelBuilder",
                           "A model's description and weights, on their way in.")
      .def(py::init<const py::dict&>(), py::arg("spec"))
      .def(
          "declare",
          [](ModelBuilder& self, const std::string& slot, const std::string& storage, int64_t rows,
             int64_t cols) { self.store.declare(slot, storage_of(storage), rows, cols); },
          py::arg("slot"), py::arg("storage"), py::arg("rows"), py::arg("cols"))
      .def("allocate",
           [](ModelBuilder& self) {
             // What reading the header and building the tokenizer has left free goes back to the
             // system first, so that a load's peak is its weights.
             malloc_trim(0);
             self.store.allocate();
           })
      .def(
          "write",
          [](ModelBuilder& self, const std::string& slot, const py::buffer& source, int64_t rows) {
            const py::buffer_info view = source.request();
            const auto* bytes = static_cast<const std::byte*>(view.ptr);
            const py::gil_scoped_release release;
            self.store.write(slot, bytes, view.size * view.itemsize, rows);
          },
          py::arg("slot"), py::arg("source"), py::arg("rows"),
          "Pack the next `rows` rows of a weight from bytes as they lie in the file.");
}

}  // namespace sinkstream
