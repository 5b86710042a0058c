// Takes a model's description and weights from Python.
#include "bindings/builder.h"

#include <pybind11/stl.h>

#include <array>
#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>
#include <variant>
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

// The names of an enum's values.
template <typename Enum>
constexpr std::array<std::pair<const char*, Enum>, 0> kChoices{};
template <>
constexpr auto kChoices<Pairing> = std::to_array<std::pair<const char*, Pairing>>(
    {{"half", Pairing::kHalf}, {"interleaved", Pairing::kInterleaved}});
template <>
constexpr auto kChoices<NormKind> = std::to_array<std::pair<const char*, NormKind>>(
    {{"rms", NormKind::kRms}, {"layer", NormKind::kLayer}});
template <>
constexpr auto kChoices<QkNorm> =
    std::to_array<std::pair<const char*, QkNorm>>({{"none", QkNorm::kNone},
                                                   {"head", QkNorm::kHead},
                                                   {"full", QkNorm::kFull},
                                                   {"rotated_head", QkNorm::kRotatedHead}});
template <>
constexpr auto kChoices<Recurrence> =
    std::to_array<std::pair<const char*, Recurrence>>({{"short_conv", Recurrence::kShortConv},
                                                       {"delta_net", Recurrence::kDeltaNet},
                                                       {"mamba2", Recurrence::kMamba2}});
template <>
constexpr auto kChoices<Activation> = std::to_array<std::pair<const char*, Activation>>(
    {{"silu", Activation::kSilu},
     {"gelu", Activation::kGelu},
     {"gelu_tanh", Activation::kGeluTanh},
     {"relu2", Activation::kRelu2},
     {"clamped_swiglu", Activation::kClampedSwiglu},
     {"xielu", Activation::kXielu}});
template <>
constexpr auto kChoices<RouterScore> = std::to_array<std::pair<const char*, RouterScore>>(
    {{"softmax", RouterScore::kSoftmax},
     {"sigmoid", RouterScore::kSigmoid},
     {"softmax_of_chosen", RouterScore::kSoftmaxOfChosen},
     {"sparse_mixer", RouterScore::kSparseMixer}});
template <>
constexpr auto kChoices<GroupScore> = std::to_array<std::pair<const char*, GroupScore>>(
    {{"largest", GroupScore::kLargest}, {"sum_of_two", GroupScore::kSumOfTwo}});

template <typename Spec>
Spec spec_of(const py::dict& fields);

// Reads a field of any type that a spec has: Note: [Fields of a spec].
template <typename Value>
void read(const py::dict& fields, const char* name, Value* value) {
  if constexpr (std::is_enum_v<Value>) {
    const auto chosen = get<std::string>(fields, name);
    for (const auto& [text, choice] : kChoices<Value>) {
      if (chosen == text) return void(*value = choice);
    }
    throw CheckpointError(cat("load: `", name, "` must not be \"", chosen, "\"."), name);
  } else if constexpr (HasFields<Value>) {
    *value = spec_of<Value>(get<py::dict>(fields, name));
  } else {
    *value = get<Value>(fields, name);
  }
}

void read(const py::dict& fields, const char* name, std::vector<BlockSpec>* blocks) {
  for (const py::handle block : fields[name]) {
    blocks->push_back(spec_of<BlockSpec>(block.cast<py::dict>()));
  }
}

// A variant's dict says which kind it is.
template <typename... Kinds>
void read(const py::dict& fields, const char* name, std::variant<Kinds...>* value) {
  const py::dict given = get<py::dict>(fields, name).attr("copy")();
  const auto kind = given.attr("pop")("kind").cast<std::string>();
  const auto read_if = [&]<typename Kind>(Kind) {
    if (kind != Kind::kKind) return false;
    *value = spec_of<Kind>(given);
    return true;
  };
  if ((read_if(Kinds{}) || ...)) return;
  throw CheckpointError(cat("load: `", name, "` must not be \"", kind, "\"."), name);
}

template <typename Spec>
Spec spec_of(const py::dict& fields) {
  Spec spec;
  size_t count = 0;
  Spec::for_each_field([&](const char* name, auto member, const auto&) {
    read(fields, name, &(spec.*member));
    ++count;
  });
  if constexpr (!std::is_same_v<Spec, DecoderSpec>) {  // whose family is Python's affair
    SINKSTREAM_CHECK(count == fields.size(), "a part of a spec has ", fields.size(),
                     " fields, of which the core reads ", count);
  }
  return spec;
}

DecoderSpec valid_spec_of(const py::dict& fields) {
  const auto spec = spec_of<DecoderSpec>(fields);
  validate(spec);
  return spec;
}

// (name, rows, cols) of each weight.
std::vector<std::tuple<std::string, int64_t, int64_t>> list_weights(const py::dict& fields) {
  DecoderWeights weights;
  std::vector<std::tuple<std::string, int64_t, int64_t>> found;
  for (WeightSlot& slot : weight_slots(valid_spec_of(fields), &weights)) {
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
  if (name == "columns") return SplitLayout::kColumns;
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

ModelBuilder::ModelBuilder(const py::dict& fields) : spec(valid_spec_of(fields)), store(spec) {}

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
             const std::string& storage, int64_t rows, int64_t cols, float added,
             bool is_transposed) {
            const WeightFile from = {
                .storage = storage_of(file), .is_transposed = is_transposed, .added = added};
            self.store.declare(weight, from, storage_of(storage), rows, cols);
          },
          py::arg("weight"), py::arg("file"), py::arg("storage"), py::arg("rows"), py::arg("cols"),
          py::arg("added") = 0.0f, py::arg("is_transposed") = false,
          "Declare a weight: how the file stores it, and how it is kept. If these differ, it is "
          "rounded as it is read, to one of `quantizable`. `added`: to each number of a vector. "
          "`is_transposed`: the tensor's columns follow each other, each with all rows.")
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
