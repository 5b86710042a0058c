// The stream class that python/sinkstream/streams/stream.py wraps.
#include "bindings/stream.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>

#include "bindings/gil.h"
#include "bindings/register.h"
#include "common/check.h"
#include "sampling/compile_grammar.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

// A wait returns to Python this often to handle an interrupt: soon enough to feel immediate.
constexpr std::chrono::milliseconds kSignalSlice{50};

// Sets every option of SamplingParams from the value of the same name.
struct OptionReader {
  const py::dict& values;

  template <typename T, typename Range>
  void operator()(const char* name, T& field, Range) const {
    field = values[name].cast<T>();
  }
  void operator()(const char* name, std::vector<TokenBias>& field, NoRange) const {
    for (const auto& [id, bias] : values[name].cast<py::dict>()) {
      field.push_back({id.cast<int32_t>(), bias.cast<float>()});
    }
  }
};

std::vector<std::string> request_options() {
  std::vector<std::string> names;
  const SamplingParams params;
  for_each_option(params, [&](const char* name, const auto&, auto) { names.emplace_back(name); });
  return names;
}

py::str to_str(const char* utf8, size_t bytes) {
  PyObject* text = PyUnicode_DecodeUTF8(utf8, static_cast<Py_ssize_t>(bytes), "strict");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

int64_t characters(const char* utf8, size_t bytes) {
  return std::count_if(utf8, utf8 + bytes, [](char byte) { return (byte & 0xC0) != 0x80; });
}

const char* name_of(StreamMark::Kind kind) {
  switch (kind) {
    case StreamMark::Kind::kStarted: return "started";
    case StreamMark::Kind::kPrefill: return "prefill";
    case StreamMark::Kind::kEvicted: return "evicted";
  }
  return "";
}

// The NamedTuple Batch of python/sinkstream/streams/batch.py, which documents its fields.
// Not kept by gil_safe_call_once_and_store, whose guards would be on the stack while the import
// runs Python code; see Note: [Exit with a daemon thread].
PyTypeObject* batch_type() {
  static PyObject* type = nullptr;  // guarded by the GIL; never freed
  if (type == nullptr) {
    py::object found = import_python("sinkstream.streams.batch").attr("Batch");
    SINKSTREAM_CHECK(py::len(found.attr("_fields")) == 7, "Batch has unexpected fields");
    type = found.release().ptr();  // the same object if another thread was faster
  }
  return reinterpret_cast<PyTypeObject*>(type);
}

// tuple.__new__(Batch, fields): faster than Batch's own __new__, which is Python code.
py::object make_batch(const py::tuple& fields) {
  PyObject* batch = PyTuple_Type.tp_new(batch_type(), py::make_tuple(fields).ptr(), nullptr);
  if (batch == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(batch);
}

// (id, logprob or None, alternatives) of each token of the prompt.
py::tuple prompt_of(const StreamBatch& batch) {
  py::tuple prompt(batch.prompt.size());
  const TokenLogprob* top = batch.prompt_top.data();
  for (size_t i = 0; i < batch.prompt.size(); ++i) {
    const PromptToken& token = batch.prompt[i];
    py::tuple own(token.top_count);
    for (size_t j = 0; j < token.top_count; ++j, ++top) {
      own[j] = py::make_tuple(top->id, top->logprob);
    }
    const bool is_first = std::isnan(token.logprob);
    prompt[i] = py::make_tuple(
        token.id, is_first ? py::object(py::none()) : py::object(py::float_(token.logprob)), own);
  }
  return prompt;
}

py::object to_python(const StreamBatch& batch) {
  const size_t count = batch.tokens.size();
  py::list ids(count), logprobs(count), lengths(count), alternatives, marks;
  const char* text = batch.text.data();
  const TokenLogprob* top = batch.top.data();
  for (size_t i = 0; i < count; ++i) {
    const StreamToken& token = batch.tokens[i];
    ids[i] = py::int_(token.id);
    logprobs[i] = py::float_(token.logprob);
    lengths[i] = py::int_(characters(text, token.text_bytes));
    text += token.text_bytes;
    if (batch.top.empty()) continue;
    py::tuple own(token.top_count);
    for (size_t j = 0; j < token.top_count; ++j, ++top) {
      own[j] = py::make_tuple(top->id, top->logprob);
    }
    alternatives.append(own);
  }
  for (const StreamMark& mark : batch.marks) {
    marks.append(py::make_tuple(name_of(mark.kind), mark.tokens_before, mark.count));
  }
  return make_batch(py::make_tuple(to_str(batch.text.data(), batch.text.size()), ids, logprobs,
                                   lengths, alternatives, marks, prompt_of(batch)));
}

py::object finish_reason(const StreamHandle& self) {
  const std::optional<FinishReason> reason = self.stream().finish_reason();
  return reason ? py::object(py::str(name_of(*reason))) : py::none();
}

py::dict stream_stats(const StreamHandle& self) {
  const StreamStats stats = self.stream().stats();
  const bool has_gaps = stats.decode_gaps > 0;
  const auto or_none = [](bool is_known, double value) {
    return is_known ? py::object(py::float_(value)) : py::none();
  };
  py::dict fields;
  fields["request_id"] = self.stream().request_id();
  fields["prompt_tokens"] = stats.prompt_tokens;
  fields["generated_tokens"] = stats.generated_tokens;
  fields["cached_tokens"] = stats.cached_tokens;
  fields["replayed_tokens"] = stats.replayed_tokens;
  fields["evicted_tokens"] = stats.evicted_tokens;
  fields["draft_tokens"] = stats.draft_tokens;
  fields["accepted_tokens"] = stats.accepted_tokens;
  fields["live_tokens"] = stats.live_tokens;
  fields["cache_bytes"] = stats.cache_bytes;
  fields["time_to_first_token_s"] = or_none(stats.first_token_s >= 0, stats.first_token_s);
  fields["tokens_per_s"] =
      or_none(has_gaps, static_cast<double>(stats.decode_gaps) / std::max(stats.decode_s, 1e-9));
  fields["token_p50_s"] = or_none(has_gaps, self.stream().gap_quantile_s(0.5));
  fields["token_p99_s"] = or_none(has_gaps, self.stream().gap_quantile_s(0.99));
  fields["consumer_lag"] = self.stream().pending_tokens();
  return fields;
}

std::optional<CallTags> call_tags(const py::object& tags) {
  if (tags.is_none()) return std::nullopt;
  CallTags native;
  native.call_begin = tags.attr("begin").cast<std::string>();
  native.is_first = tags.attr("is_first").cast<bool>();
  native.thought_begin = tags.attr("thought_begin").cast<std::string>();
  native.thought_end = tags.attr("thought_end").cast<std::string>();
  native.is_in_thought = tags.attr("is_in_thought").cast<bool>();
  for (const auto& [id, marker] : tags.attr("markers").cast<py::dict>()) {
    native.markers.emplace_back(id.cast<int32_t>(), marker.cast<std::string>());
  }
  return native;
}

Clock::time_point time_of(double seconds) {
  return Clock::time_point(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
}

}  // namespace

py::object StreamHandle::take() {
  // If a batch is available, releasing and reacquiring the GIL is not worth it.
  TokenStream::Taken taken = stream_->take(std::chrono::nanoseconds(0), &batch_);
  while (taken == TokenStream::Taken::kNothing) {
    {
      const ReleaseGil released;
      taken = stream_->take(kSignalSlice, &batch_);
    }
    if (taken == TokenStream::Taken::kNothing && PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }
  if (taken == TokenStream::Taken::kEnd) return py::none();
  return to_python(batch_);
}

std::unique_ptr<StreamHandle> submit_from_python(Engine& engine, const py::object& request,
                                                 const std::shared_ptr<Session>& session) {
  Request native;
  native.prompt = request.attr("prompt").cast<std::vector<int32_t>>();
  const auto options = request.attr("options").cast<py::dict>();
  for_each_option(native.params, OptionReader{options});
  native.sinks = request.attr("sinks").cast<std::optional<int64_t>>();
  native.continues_text = request.attr("continues_text").cast<bool>();
  native.cache_salt = request.attr("cache_salt").cast<std::string>();
  const py::object origin = request.attr("origin");
  native.share = origin.attr("share").cast<std::string>();
  native.weight = origin.attr("weight").cast<double>();
  native.calls = call_tags(request.attr("calls"));
  native.called_at = time_of(request.attr("called_at").cast<double>());
  native.grammar = request.attr("grammar").cast<std::shared_ptr<CompiledGrammar>>();
  const ReleaseGil released;
  return std::make_unique<StreamHandle>(session ? engine.submit(std::move(native), session)
                                                : engine.submit(std::move(native)));
}

void register_stream(py::module_& module) {
  module.def("request_options", &request_options, "List the options that are read from a request.");
  py::class_<StreamHandle>(module, "TokenStream", "The output of one sequence, for one consumer.")
      .def("take", &StreamHandle::take, "Wait for the next Batch, or None at the end.")
      .def_property_readonly(
          "is_ready", [](const StreamHandle& self) { return self.stream().is_ready(); },
          "Whether `take` would return immediately.")
      .def(
          "ring_when_ready",
          [](StreamHandle& self, std::shared_ptr<LoopBell> bell) {
            return self.stream().ring_when_ready(std::move(bell));
          },
          py::arg("bell"),
          "Ring the bell once when `is_ready` becomes true; return False, without a ring, if it "
          "already is.")
      .def("cancel", [](StreamHandle& self) { self.stream().cancel(); })
      .def("close", [](StreamHandle& self) { self.stream().close(); })
      .def(
          "rethrow", [](StreamHandle& self) { self.stream().rethrow(); },
          "Raise the error that ended the stream, if any.")
      .def("stats", &stream_stats)
      .def_property_readonly("finish_reason", &finish_reason)
      .def_property_readonly("request_id",
                             [](const StreamHandle& self) { return self.stream().request_id(); })
      .def_property_readonly(
          "phase", [](const StreamHandle& self) { return name_of(self.stream().stats().phase); });
}

}  // namespace sinkstream
