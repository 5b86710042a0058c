// The native model class that python/sinkstream/model.py wraps.
#include <malloc.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bindings/builder.h"
#include "bindings/gil.h"
#include "bindings/register.h"
#include "bindings/session.h"
#include "bindings/stats.h"
#include "bindings/stream.h"
#include "common/check.h"
#include "common/errors.h"
#include "runtime/loaded_model.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

// Frees a model without the GIL, because it joins the model's thread. In a forked child that thread
// does not exist, so the model is leaked.
struct ModelDeleter {
  void operator()(LoadedModel* model) const {
    if (!model->engine().is_owner_process()) return;
    const ReleaseGil released;
    delete model;
  }
};
using ModelHolder = std::unique_ptr<LoadedModel, ModelDeleter>;

// The CUDA kernels if `device` is "cuda". Throws InvalidArgument if there is no GPU.
const cuda::Plugin* gpu_of(const std::string& device, const py::object& library) {
  if (device != "cuda") return nullptr;
  const cuda::GpuSearch found = cuda::find_gpu(library.cast<std::string>());
  if (found.plugin == nullptr) {
    throw InvalidArgument(
        cat("load: `device` must be \"cpu\" on this machine, but is \"cuda\": ", found.problem),
        "device");
  }
  return found.plugin;
}

ModelHolder make_model(ModelBuilder& builder, const py::dict& options,
                       std::shared_ptr<TokenTable> tokens, std::vector<int32_t> end_token_ids) {
  LoadOptions native;
  native.dtype = options["dtype"].cast<std::string>();
  native.kv_dtype = options["kv_dtype"].cast<std::string>();
  native.sinks = options["sinks"].cast<int64_t>();
  native.window = options["window"].cast<int64_t>();
  native.max_sequences = options["max_sequences"].cast<int64_t>();
  native.prefill_chunk = options["prefill_chunk"].cast<int64_t>();
  native.threads = options["threads"].cast<int64_t>();
  native.speculation = options["speculation"].cast<std::optional<int64_t>>();
  native.kernels = options["kernels"].cast<std::string>();
  native.gpu = gpu_of(options["device"].cast<std::string>(), options["cuda_library"]);
  const ReleaseGil released;
  // First return to the system the memory freed by reading the header and building the tokenizer,
  // so that peak memory is the weights and the cache.
  malloc_trim(0);
  return ModelHolder(new LoadedModel(builder.spec, std::move(builder.store), native,
                                     std::move(tokens), std::move(end_token_ids)));
}

// Marks a cache as used by one forward pass.
class Borrowed {
 public:
  explicit Borrowed(ForwardCache* cache) : cache_(cache) {
    if (cache_ != nullptr && cache_->busy.exchange(true)) {
      cache_ = nullptr;
      throw SessionBusy("forward: `cache` is in use by another forward pass.", "cache");
    }
  }
  ~Borrowed() {
    if (cache_ != nullptr) cache_->busy.store(false);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

 private:
  ForwardCache* cache_;
};

void check_own(const char* where, const LoadedModel& model, const ForwardCache& cache) {
  if (cache.model == model.serial()) return;
  throw InvalidArgument(
      cat(where, ": `cache` must have been made by this model, but was made by another."), "cache");
}

// Runs pending Python signal handlers, which run in the main thread only; throws what they raise.
void look_for_signals() {
  if (::getpid() != ::syscall(SYS_gettid)) return;
  const AcquireGil acquired;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// A numpy view of a tensor's memory: dense, and never converted or copied.
template <typename T>
using Dense = py::array_t<T, py::array::c_style>;

// Checks the arguments of a forward pass before its logits are allocated. `ids` is [batch, tokens].
// Returns the ids in the type that the core takes.
std::vector<int32_t> check_forward(const LoadedModel& model, const Dense<int64_t>& ids,
                                   const ForwardCache* cache) {
  SINKSTREAM_CHECK(ids.ndim() == 2 && ids.shape(0) > 0,
                   "ids must have a non-empty shape [batch, tokens], but have ", ids.ndim(),
                   " dimensions");
  const int64_t batch = ids.shape(0), tokens = ids.shape(1), vocab = model.spec().vocab_size;
  if (cache != nullptr) check_own("forward", model, *cache);
  if (cache != nullptr && cache->batch() != batch) {
    throw InvalidArgument(cat("forward: `cache` must have batch size ", batch,
                              ", like `ids`, but has ", cache->batch(), "."),
                          "cache");
  }
  const int64_t* values = ids.data();
  std::vector<int32_t> narrow(batch * tokens);
  for (int64_t i = 0; i < batch * tokens; ++i) {
    if (values[i] < 0 || values[i] >= vocab) {
      throw InvalidArgument(
          cat("forward: item [", i / tokens, ", ", i % tokens,
              "] of `ids` must be a token id in [0, ", vocab, "), but is ", values[i], "."),
          "ids");
    }
    narrow[i] = static_cast<int32_t>(values[i]);
  }
  return narrow;
}

// Writes `logits` [batch, tokens, vocab].
void forward(LoadedModel& model, const Dense<int64_t>& ids, Dense<float>& logits,
             ForwardCache* cache) {
  const std::vector<int32_t> narrow = check_forward(model, ids, cache);
  const int64_t batch = ids.shape(0), tokens = ids.shape(1);
  SINKSTREAM_CHECK(logits.size() == batch * tokens * model.spec().vocab_size, "forward writes ",
                   logits.size(), " logits for ", batch * tokens, " tokens");
  if (tokens == 0) return;
  float* out = logits.mutable_data();
  const Borrowed borrowed(cache);
  const ReleaseGil released;
  model.forward(narrow, batch, tokens, cache, out, look_for_signals);
}

std::unique_ptr<ForwardCache> copy_of(const LoadedModel& model, ForwardCache& cache) {
  check_own("copy", model, cache);
  const Borrowed borrowed(&cache);
  const ReleaseGil released;
  return model.copy_of(cache);
}

void evict_range(LoadedModel& model, ForwardCache& cache, int64_t start, int64_t end) {
  check_own("evict_range", model, cache);
  const Borrowed borrowed(&cache);
  const ReleaseGil released;
  model.evict_range(&cache, start, end);
}

void register_cache(py::module_& module) {
  py::class_<ForwardCache>(module, "ForwardCache")
      .def_property_readonly("batch", &ForwardCache::batch)
      .def_property_readonly("length", [](const ForwardCache& self) { return self.row().length(); })
      .def_property_readonly("live", [](const ForwardCache& self) { return self.row().live(); })
      .def_property_readonly("evicted",
                             [](const ForwardCache& self) { return self.row().evicted(); })
      .def_property_readonly("bytes", [](const ForwardCache& self) { return self.memory.bytes(); })
      .def(
          "evict_for_space",
          [](ForwardCache& self, int64_t count) {
            const Borrowed borrowed(&self);
            for (auto& row : self.rows) row->evict_for_space(count);
          },
          py::arg("n"))
      .def("restart",
           [](ForwardCache& self) {
             const Borrowed borrowed(&self);
             for (auto& row : self.rows) row->restart();
           })
      .def(
          "jump",
          [](ForwardCache& self, int64_t index) {
            const Borrowed borrowed(&self);
            for (auto& row : self.rows) row->jump(index);
          },
          py::arg("index"));
}

// Of each layer its key heads, head_dim and bytes of state.
std::vector<std::tuple<int64_t, int64_t, int64_t>> layer_memory(const LoadedModel& model) {
  const CacheLayers& layers = model.layers();
  std::vector<std::tuple<int64_t, int64_t, int64_t>> found;
  for (int64_t layer = 0; layer < layers.count(); ++layer) {
    const auto [group, number] = layers.layer_in_group(layer);
    if (group == CacheLayers::kNoGroup) {
      found.emplace_back(0, 0, layers.states()[static_cast<size_t>(number)].bytes);
      continue;
    }
    const size_t shape = layers.groups()[static_cast<size_t>(group)].shape;
    const PageShape& page = layers.shapes()[shape];
    found.emplace_back(page.kv_heads, page.head_dim, 0);
  }
  return found;
}

}  // namespace

void register_model(py::module_& module) {
  register_cache(module);
  py::class_<LoadedModel, ModelHolder>(module, "Model")
      .def(py::init(&make_model), py::arg("builder"), py::arg("options"), py::arg("tokens"),
           py::arg("end_token_ids"))
      .def("close", &LoadedModel::close, py::call_guard<ReleaseGil>())
      .def("fingerprint", &LoadedModel::fingerprint, py::call_guard<ReleaseGil>())
      .def(
          "check_forward",
          [](const LoadedModel& self, const Dense<int64_t>& ids, const ForwardCache* cache) {
            check_forward(self, ids, cache);
          },
          py::arg("ids").noconvert(), py::arg("cache").none(true))
      .def("forward", &forward, py::arg("ids").noconvert(), py::arg("logits").noconvert(),
           py::arg("cache").none(true))
      .def(
          "new_cache",
          [](const LoadedModel& self, int64_t batch, int64_t sinks, int64_t window) {
            const ReleaseGil released;
            return self.new_cache(batch, Window{sinks, window});
          },
          py::arg("batch"), py::arg("sinks"), py::arg("window"))
      .def("copy_of", &copy_of, py::arg("cache"))
      .def("evict_range", &evict_range, py::arg("cache"), py::arg("start"), py::arg("end"))
      .def(
          "submit",
          [](LoadedModel& self, const py::object& request, const SessionHandle* session) {
            return submit_from_python(self.engine(), request,
                                      session == nullptr ? nullptr : session->session());
          },
          py::arg("request"), py::arg("session").none(true) = py::none())
      .def(
          "open_session",
          [](LoadedModel& self, std::optional<int64_t> sinks, const std::vector<int32_t>& ids,
             std::string cache_salt) {
            return std::make_unique<SessionHandle>(
                self.engine().open_session(sinks, ids, std::move(cache_salt)));
          },
          py::arg("sinks").none(true), py::arg("prompt"), py::arg("cache_salt") = "",
          py::call_guard<ReleaseGil>())
      .def(
          "fork_session",
          [](LoadedModel& self, const SessionHandle& session) {
            return std::make_unique<SessionHandle>(self.engine().fork_session(*session.session()));
          },
          py::arg("session"), py::call_guard<ReleaseGil>())
      .def(
          "contents_of",
          [](LoadedModel& self, const SessionHandle& session) {
            return contents_of(self.engine(), session);
          },
          py::arg("session"))
      .def(
          "restore_session",
          [](LoadedModel& self, int64_t sinks, const py::dict& contents, std::string cache_salt) {
            return restore_session(self.engine(), sinks, contents, std::move(cache_salt));
          },
          py::arg("sinks"), py::arg("contents"), py::arg("cache_salt") = "")
      .def(
          "position_of",
          [](LoadedModel& self, const SessionHandle& session) {
            const SessionPosition at = [&] {
              const ReleaseGil released;
              return self.engine().position_of(*session.session());
            }();
            return py::make_tuple(at.length, at.pending, at.turns);
          },
          py::arg("session"))
      .def(
          "go_back",
          [](LoadedModel& self, const SessionHandle& session,
             const std::tuple<int64_t, std::optional<int32_t>, int64_t>& to, bool reads_again) {
            const auto& [length, pending, turns] = to;
            return self.engine().go_back(*session.session(), {length, pending, turns}, reads_again);
          },
          py::arg("session"), py::arg("to"), py::arg("reads_again"), py::call_guard<ReleaseGil>())
      .def(
          "ids_of",
          [](LoadedModel& self, const SessionHandle& session, bool kept) {
            return self.engine().ids_of(*session.session(), kept);
          },
          py::arg("session"), py::arg("kept") = false, py::call_guard<ReleaseGil>())
      .def(
          "last_token",
          [](LoadedModel& self, const SessionHandle& session) {
            return self.engine().last_token(*session.session());
          },
          py::arg("session"), py::call_guard<ReleaseGil>())
      .def("stats", [](LoadedModel& self) { return stats_for_python(self.engine()); })
      .def(
          "steps",
          [](LoadedModel& self, int64_t begin) { return steps_for_python(self.engine(), begin); },
          py::arg("begin"))
      .def(
          "phase_changes",
          [](LoadedModel& self, int64_t begin) {
            return phase_changes_for_python(self.engine(), begin);
          },
          py::arg("begin"))
      .def(
          "finish_step", [](LoadedModel& self) { self.engine().between_steps([] {}); },
          py::call_guard<ReleaseGil>())
      .def_property_readonly("served_by",
                             [](const LoadedModel& self) { return self.kernels().served_by; })
      .def_property_readonly("kernels",
                             [](const LoadedModel& self) { return self.kernels().kernels.name; })
      .def_property_readonly("threads", &LoadedModel::threads)
      .def_property_readonly("is_on_gpu", &LoadedModel::is_on_gpu)
      .def_property_readonly("dtype",
                             [](const LoadedModel& self) { return name_of(self.input_type()); })
      .def_property_readonly("kv_dtype",
                             [](const LoadedModel& self) { return name_of(self.cache_type()); })
      .def_property_readonly("prefill_chunk", &LoadedModel::prefill_chunk)
      .def_property_readonly("weight_bytes", &LoadedModel::weight_bytes)
      .def_property_readonly("weight_bytes_per_token", &LoadedModel::weight_bytes_per_token)
      .def_property_readonly("scratch_bytes", &LoadedModel::scratch_bytes)
      .def_property_readonly("cache_bytes", &LoadedModel::cache_bytes)
      .def_property_readonly("bytes_per_token", &LoadedModel::bytes_per_token)
      .def_property_readonly("bytes_per_sequence", &LoadedModel::bytes_per_sequence)
      .def_property_readonly("state_bytes_per_sequence", &LoadedModel::state_bytes_per_sequence)
      .def_property_readonly("layer_memory", &layer_memory)
      .def_property_readonly("spare_cache_bytes", &LoadedModel::spare_cache_bytes);
}

}  // namespace sinkstream
