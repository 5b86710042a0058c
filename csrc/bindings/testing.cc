// sinkstream._core.testing: the logits and sample ops on one row of logits, and block formats.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <numeric>

#include "bindings/builder.h"
#include "bindings/register.h"
#include "common/errors.h"
#include "common/float_mode.h"
#include "device/buffer.h"
#include "kernels/choose.h"
#include "kernels/pack.h"
#include "sampling/params.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

using Row = std::vector<float>;
using Pairs = std::vector<std::pair<int32_t, double>>;

int64_t vocab_of(const Row& logits) {
  if (logits.empty()) throw InvalidArgument("sampling: `logits` must not be empty.", "logits");
  return static_cast<int64_t>(logits.size());
}

std::vector<TokenCount> counts_of(const std::vector<std::pair<int32_t, int32_t>>& pairs,
                                  int64_t vocab) {
  std::vector<TokenCount> counts;
  for (const auto& [id, count] : pairs) {
    if (id < 0 || id >= vocab || count < 1) {
      throw InvalidArgument(cat("sampling: `counts` must hold ids in [0, ", vocab,
                                ") and counts of at least 1, but holds (", id, ", ", count, ")."),
                            "counts");
    }
    counts.push_back({id, count});
  }
  return counts;
}

Row process_logits(const Row& logits, const std::vector<std::pair<int32_t, int32_t>>& counts,
                   const Pairs& bias, double repetition_penalty, double presence_penalty,
                   double frequency_penalty, double temperature, const std::string& table) {
  const int64_t vocab = vocab_of(logits);
  SamplingParams params;
  params.temperature = temperature;
  params.repetition_penalty = repetition_penalty;
  params.presence_penalty = presence_penalty;
  params.frequency_penalty = frequency_penalty;
  for (const auto& [id, value] : bias) params.logit_bias.push_back({id, static_cast<float>(value)});
  validate(params, vocab);
  if (temperature < kGreedyTemperature) {
    throw InvalidArgument(cat("sampling: `temperature` must be at least ", kGreedyTemperature,
                              " to divide logits, but is ", temperature, "."),
                          "temperature");
  }
  const std::vector<TokenCount> live = counts_of(counts, vocab);

  Row out(logits.size());
  bool is_finite = false;
  ThreadPool pool(1);
  choose_kernels(table).kernels.logits(
      {.input = logits.data(),
       .out = out.data(),
       .vocab = vocab,
       .bias = params.logit_bias.data(),
       .bias_count = static_cast<int64_t>(bias.size()),
       .counts = live.data(),
       .count_count = static_cast<int64_t>(live.size()),
       .repetition_penalty = static_cast<float>(repetition_penalty),
       .presence_penalty = static_cast<float>(presence_penalty),
       .frequency_penalty = static_cast<float>(frequency_penalty),
       .temperature = static_cast<float>(temperature),
       .is_finite = &is_finite},
      {&pool});
  if (!is_finite) throw NonFiniteLogits("sampling: logits must be finite, but are not.");
  return out;
}

std::vector<int64_t> kept_tokens(const Row& logits, int64_t top_k, double top_p, double min_p,
                                 const std::string& table) {
  const int64_t vocab = vocab_of(logits);
  SamplingParams params;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  validate(params, vocab);
  for (const float x : logits) {
    if (!(x < INFINITY)) {
      throw NonFiniteLogits("sampling: logits must be finite or -inf, but are not.");
    }
  }
  const Buffer scratch(sample_scratch_bytes(vocab), "sampling");
  int32_t token = 0;
  float threshold = 0;
  ThreadPool pool(1);
  choose_kernels(table).kernels.sample({.logits = logits.data(),
                                        .vocab = vocab,
                                        .top_k = top_k,
                                        .top_p = top_p,
                                        .min_p = min_p,
                                        .scratch = scratch.data(),
                                        .token = &token,
                                        .threshold = &threshold},
                                       {&pool});
  const FlushDenormals flush;  // as in the kernel
  std::vector<int64_t> kept;
  for (int64_t id = 0; id < vocab; ++id) {
    if (logits[id] >= threshold) kept.push_back(id);
  }
  return kept;
}

py::bytes unpack_rows(Storage storage, const std::string& content, int64_t cols,
                      const std::string& table) {
  const int64_t bytes = row_bytes_of(storage, cols);
  if (cols < 1 || cols % row_of(storage).block != 0 ||
      content.size() % static_cast<size_t>(bytes) != 0) {
    throw InvalidArgument(cat("unpack_rows: `content` must be rows of whole ", row_of(storage).name,
                              " blocks, but has ", content.size(), " bytes."),
                          "content");
  }
  const int64_t rows = static_cast<int64_t>(content.size()) / bytes;
  const WeightType type = weight_type_of(storage);
  const Buffer panels(packed_bytes(type, rows, cols), "panels");
  std::memset(panels.data(), 0, panels.bytes());
  pack_rows(storage, reinterpret_cast<const std::byte*>(content.data()), 0, rows, cols,
            panels.data());
  std::vector<int32_t> ids(rows);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> out(rows * cols);
  ThreadPool pool(1);
  choose_kernels(table).kernels.embedding(
      {.ids = ids.data(),
       .tokens = rows,
       .table = {.type = type, .rows = rows, .cols = cols, .panels = panels.data()},
       .out = out.data()},
      {&pool});
  return {reinterpret_cast<const char*>(out.data()), out.size() * sizeof(float)};
}

// The numbers of a matrix that a builder has read, in the order of the file's columns.
py::bytes matrix_numbers(const ModelBuilder& builder, const std::string& weight,
                         const std::string& table) {
  const PackedMatrix matrix = builder.store.matrix(weight);
  std::vector<int32_t> ids(matrix.rows);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> packed(matrix.rows * matrix.cols);
  ThreadPool pool(1);
  choose_kernels(table).kernels.embedding(
      {.ids = ids.data(), .tokens = matrix.rows, .table = matrix, .out = packed.data()}, {&pool});
  std::vector<float> out(packed.size());
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t col = 0; col < matrix.cols; ++col) {
      const int64_t to = matrix.order == nullptr ? col : matrix.order[col];
      out[row * matrix.cols + to] = packed[row * matrix.cols + col];
    }
  }
  return {reinterpret_cast<const char*>(out.data()), out.size() * sizeof(float)};
}

}  // namespace

void register_testing(py::module_& core) {
  py::module_ module = core.def_submodule("testing", "Single steps, for tests.");
  module.def("process_logits", &process_logits, py::arg("logits"), py::kw_only(),
             py::arg("counts") = std::vector<std::pair<int32_t, int32_t>>(),
             py::arg("bias") = Pairs(), py::arg("repetition_penalty") = 1.0,
             py::arg("presence_penalty") = 0.0, py::arg("frequency_penalty") = 0.0,
             py::arg("temperature") = 1.0, py::arg("table") = "",
             "Apply bias, penalties and temperature to one row of logits, as a stream does.\n\n"
             "`counts`: (id, occurrences) of the live tokens. `table`: a kernel table by name.");
  module.def("kept_tokens", &kept_tokens, py::arg("logits"), py::kw_only(), py::arg("top_k") = 0,
             py::arg("top_p") = 1.0, py::arg("min_p") = 0.0, py::arg("table") = "",
             "List the ids that are left after top-k, then top-p, then min-p.");
  module.def(
      "unpack_rows",
      [](const std::string& storage, const py::bytes& content, int64_t cols,
         const std::string& table) {
        return unpack_rows(storage_of(storage), content, cols, table);
      },
      py::arg("storage"), py::arg("content"), py::arg("cols"), py::arg("table") = "",
      "Pack rows of a file into panels, and return their numbers as float32, [rows, cols].");
  module.def("matrix_numbers", &matrix_numbers, py::arg("builder"), py::arg("weight"),
             py::arg("table") = "",
             "Return a matrix that was read, as float32, [rows, cols] of the file.");
}

}  // namespace sinkstream
