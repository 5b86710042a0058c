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

// What a field of each type must be, for errors.
template <typename T>
constexpr const char* kRule = "an object";
template <>
constexpr const char* kRule<bool> = "true or false";
template <>
constexpr const char* kRule<double> = "a number";
template <>
constexpr const char* kRule<float> = "a number";
template <>
constexpr const char* kRule<int64_t> = "a 64-bit integer";
template <>
constexpr const char* kRule<std::string> = "a string";
template <>
constexpr const char* kRule<std::vector<double>> = "a list of numbers";
template <>
constexpr const char* kRule<std::vector<float>> = "a list of numbers";
template <>
constexpr const char* kRule<std::vector<int32_t>> = "a list of 32-bit integers";

// A field of Python's dataclasses, as their `asdict` gives it.
template <typename T>
T get(const py::dict& fields, const char* name) {
  try {
    return fields[name].cast<T>();
  } catch (const py::cast_error&) {
    const auto given = py::repr(fields[name]).cast<std::string>().substr(0, 40);
    throw CheckpointError(cat("load: `", name, "` must be ", kRule<T>, ", but is ", given, "."),
                          name);
  }
}

template <typename T, size_t kCount>
T choice(const py::dict& fields, const char* name,
         const std::pair<const char*, T> (&choices)[kCount]) {
  const auto chosen = get<std::string>(fields, name);
  for (const auto& [text, value] : choices) {
    if (chosen == text) return value;
  }
  throw CheckpointError(cat("load: `", name, "` must not be \"", chosen, "\"."), name);
}

RopeSpec rope_of(const py::dict& fields) {
  constexpr std::pair<const char*, Pairing> kPairings[] = {{"half", Pairing::kHalf},
                                                           {"interleaved", Pairing::kInterleaved}};
  return {.inverse_frequencies = get<std::vector<double>>(fields, "inverse_frequencies"),
          .pairing = choice(fields, "pairing", kPairings),
          .attention_factor = get<double>(fields, "attention_factor")};
}

NormSpec norm_of(const py::dict& fields) {
  constexpr std::pair<const char*, NormKind> kKinds[] = {{"rms", NormKind::kRms},
                                                         {"layer", NormKind::kLayer}};
  return {.kind = choice(fields, "kind", kKinds),
          .eps = get<float>(fields, "eps"),
          .bias = get<bool>(fields, "bias")};
}

AttentionSpec attention_of(const py::dict& fields) {
  constexpr std::pair<const char*, QkNorm> kQkNorms[] = {
      {"none", QkNorm::kNone}, {"head", QkNorm::kHead}, {"full", QkNorm::kFull}};
  return {.heads = get<int64_t>(fields, "heads"),
          .kv_heads = get<int64_t>(fields, "kv_heads"),
          .head_dim = get<int64_t>(fields, "head_dim"),
          .rope = rope_of(get<py::dict>(fields, "rope")),
          .scale = get<float>(fields, "scale"),
          .window = get<int64_t>(fields, "window"),
          .soft_cap = get<float>(fields, "soft_cap"),
          .slopes = get<std::vector<float>>(fields, "slopes"),
          .qk_norm = choice(fields, "qk_norm", kQkNorms),
          .qkv_bias = get<bool>(fields, "qkv_bias"),
          .output_bias = get<bool>(fields, "output_bias"),
          .clip = get<float>(fields, "clip"),
          .temperature = get<float>(fields, "temperature"),
          .temperature_length = get<int64_t>(fields, "temperature_length")};
}

MlpSpec mlp_of(const py::dict& fields) {
  constexpr std::pair<const char*, Activation> kActivations[] = {
      {"silu", Activation::kSilu},
      {"gelu", Activation::kGelu},
      {"gelu_tanh", Activation::kGeluTanh},
      {"relu2", Activation::kRelu2}};
  return {.intermediate_size = get<int64_t>(fields, "intermediate_size"),
          .activation = choice(fields, "activation", kActivations),
          .gated = get<bool>(fields, "gated"),
          .bias = get<bool>(fields, "bias")};
}

BlockSpec block_of(const py::dict& fields) {
  return {.attention = attention_of(get<py::dict>(fields, "attention")),
          .mlp = mlp_of(get<py::dict>(fields, "mlp")),
          .norm = norm_of(get<py::dict>(fields, "norm")),
          .attention_norm = get<bool>(fields, "attention_norm"),
          .mlp_norm = get<bool>(fields, "mlp_norm"),
          .attention_post_norm = get<bool>(fields, "attention_post_norm"),
          .mlp_post_norm = get<bool>(fields, "mlp_post_norm"),
          .parallel = get<bool>(fields, "parallel"),
          .residual_scale = get<float>(fields, "residual_scale")};
}

DecoderSpec spec_of(const py::dict& fields) {
  DecoderSpec spec;
  spec.vocab_size = get<int64_t>(fields, "vocab_size");
  spec.hidden_size = get<int64_t>(fields, "hidden_size");
  for (const py::handle block : fields["blocks"]) {
    spec.blocks.push_back(block_of(block.cast<py::dict>()));
  }
  spec.block_of_layer = get<std::vector<int32_t>>(fields, "block_of_layer");
  spec.final_norm = norm_of(get<py::dict>(fields, "final_norm"));
  spec.tie_embeddings = get<bool>(fields, "tie_embeddings");
  spec.embedding_scale = get<float>(fields, "embedding_scale");
  spec.logit_scale = get<float>(fields, "logit_scale");
  spec.logit_soft_cap = get<float>(fields, "logit_soft_cap");
  validate(spec);
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

// Descriptor, offset, bytes of a run and from run to run, as in TensorExtent.
using TensorExtents = std::vector<std::tuple<int, int64_t, int64_t, int64_t>>;

void start_reading(ModelBuilder& self,
                   const std::vector<std::pair<std::string, TensorExtents>>& extents, int threads) {
  self.store.allocate();
  std::vector<WeightExtent> found;
  found.reserve(extents.size());
  for (const auto& [weight, tensors] : extents) {
    SINKSTREAM_CHECK(tensors.size() <= kSplitTensors, "weight ", weight, " has ", tensors.size(),
                     " tensors");
    WeightExtent& extent = found.emplace_back();
    extent.weight = weight;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto [descriptor, offset, run_bytes, stride_bytes] = tensors[i];
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

ModelBuilder::ModelBuilder(const py::dict& fields) : spec(spec_of(fields)), store(spec) {}

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
