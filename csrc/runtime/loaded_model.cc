#include "runtime/loaded_model.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "cache/device_pages.h"
#include "common/check.h"
#include "common/divide_up.h"
#include "common/errors.h"
#include "common/quiet_thread.h"
#include "common/usable_threads.h"
#include "model/cuda/decoder.h"

namespace sinkstream {

namespace {

DType dtype_of(const std::string& name) {
  if (name == "float32") return DType::kFloat32;
  if (name == "float16") return DType::kFloat16;
  if (name == "bfloat16") return DType::kBFloat16;
  SINKSTREAM_CHECK(name == "int8", "there is no type ", name);
  return DType::kInt8;
}

InputType input_type_of(const std::string& name) {
  for (const InputType type : kInputTypes) {
    if (name == name_of(type)) return type;
  }
  SINKSTREAM_CHECK(false, "there is no type ", name);
}

// Tokens of a chunk that each expert multiplies, if they choose evenly. With fewer, reading the
// expert takes longer than multiplying.
constexpr int64_t kTokensOfExpert = 64;

// 256 tokens share each pass over the weights, and their activations stay in a processor's inner
// caches. Of experts, each token chooses a few, so more tokens are needed to share a pass. A GPU
// needs more to keep all multiprocessors busy.
int64_t chunk_of(const LoadOptions& options, const DecoderSpec& spec) {
  if (options.prefill_chunk > 0) return options.prefill_chunk;
  if (options.gpu != nullptr) return 1024;
  const int64_t shared = spec.most([](const BlockSpec& block) {
    const ExpertsSpec* const experts = block.experts();
    return experts == nullptr ? 0 : divide_up(kTokensOfExpert * experts->experts, experts->chosen);
  });
  return std::clamp(divide_up(shared, 64) * 64, int64_t{256}, int64_t{1024});
}

// What a step reads of experts, of all layers together.
ExpertReads expert_reads(const DecoderSpec& spec, const WeightStore& store) {
  double share = 1;
  for (const BlockSpec& block : spec.blocks) {
    const ExpertsSpec* const experts = block.experts();
    if (experts == nullptr) continue;
    share = std::min(share,
                     static_cast<double>(experts->chosen) / static_cast<double>(experts->experts));
  }
  return {.part = static_cast<double>(store.expert_bytes_per_token()) /
                  static_cast<double>(store.bytes_per_token()),
          .share = share};
}

// Where a chunk is cut does not change any result on a CPU.
int64_t prompt_tokens_per_decode_step(const Kernels& kernels, InputType input_type) {
  const bool has_tiles = input_type != InputType::kFloat32;
  return has_tiles ? kernels.prompt_tokens_per_decode_step
                   : Kernels().prompt_tokens_per_decode_step;
}

// Attention splits its work over up to this many pages: a window of 8,192 for kSplitRows rows, or
// of 131,072 for one row. Beyond that it does not split, so that the scratch does not grow with the
// window.
constexpr int64_t kMostSplitPages = 128;

int64_t pages_of(const LoadOptions& options) {
  return Window{options.sinks, options.window}.most_pages();
}

// A step has room for one prompt chunk and one token of every sequence.
int64_t rows_of(const LoadOptions& options, const DecoderSpec& spec) {
  return chunk_of(options, spec) + options.max_sequences;
}

// float16 holds keys and values with eight times bfloat16's precision in the same bytes.
DType cache_type_of(const LoadOptions& options) {
  return options.kv_dtype == "auto" ? DType::kFloat16 : dtype_of(options.kv_dtype);
}

// GPU kernels multiply bfloat16.
InputType input_type_of(const LoadOptions& options, const Kernels& kernels) {
  if (options.dtype != "auto") return input_type_of(options.dtype);
  return options.gpu != nullptr ? InputType::kBFloat16 : kernels.native_input;
}

void check_gpu(const LoadOptions& options) {
  if (options.gpu == nullptr) return;
  if (options.dtype != "auto" && options.dtype != "bfloat16") {
    throw InvalidArgument(cat("load: `dtype` must be \"auto\" or \"bfloat16\" on a GPU, but is \"",
                              options.dtype, "\"."),
                          "dtype");
  }
  if (options.kv_dtype == "float32") {
    throw InvalidArgument(
        "load: `kv_dtype` must be one of \"auto\", \"bfloat16\", \"float16\", \"int8\" on a GPU, "
        "but is \"float32\".",
        "kv_dtype");
  }
}

// Runs a function in a thread of its own.
class Background {
 public:
  explicit Background(std::function<void()> body)
      : task_(std::move(body)), end_(task_.get_future()) {
    try {
      thread_ = start_quiet_thread("sinkstream load", [this] { task_(); });
    } catch (const std::system_error& error) {
      throw CapacityError(cat("load: the system cannot start a thread: ", error.what(), "."));
    }
  }
  ~Background() { thread_.join(); }
  // Rethrows what the function threw.
  void wait() { end_.get(); }

 private:
  std::packaged_task<void()> task_;
  std::future<void> end_;
  std::thread thread_;
};

int64_t next_serial() {
  static std::atomic<int64_t> next{0};
  return next.fetch_add(1);
}

}  // namespace

LoadedModel::LoadedModel(const DecoderSpec& spec, WeightStore&& store, const LoadOptions& options,
                         std::shared_ptr<const TokenTable> tokens,
                         std::vector<int32_t> end_token_ids)
    : serial_(next_serial()),
      spec_(spec),
      layers_(spec.cache_layers()),
      store_(std::move(store)),
      window_{options.sinks, options.window},
      max_sequences_(options.max_sequences),
      prefill_chunk_(chunk_of(options, spec)),
      kernels_(choose_kernels(options.kernels)),
      threads_(options.threads > 0 ? static_cast<int>(options.threads) : usable_threads()),
      input_type_(input_type_of(options, kernels_.kernels)),
      cache_type_(cache_type_of(options)),
      weight_bytes_(store_.bytes()),
      decoder_(make_decoder(options)),
      memory_(make_pools(max_sequences_ * layers_.most_memory(window_), &threads_, nullptr)),
      pools_(memory_.pools()),
      spare_(gpu_ ? std::make_unique<cuda::SpareMemory>(gpu_->plugin.runtime, gpu_->stream.get(),
                                                        memory_.bytes())
                  : nullptr) {
  EngineOptions engine;
  engine.pools = pools_;
  engine.layers = layers_;
  engine.window = window_;
  engine.max_sequences = max_sequences_;
  engine.prefill_chunk = prefill_chunk_;
  engine.speculation = options.speculation;
  // Not measured on a GPU.
  if (!gpu_) {
    engine.prompt_tokens_per_decode_step =
        prompt_tokens_per_decode_step(kernels_.kernels, input_type_);
    engine.experts = expert_reads(spec_, store_);
  }
  engine.kernels = &kernels_.kernels;
  engine.threads = &threads_;
  engine.tokens = std::move(tokens);
  engine.end_token_ids = std::move(end_token_ids);
  engine_ = std::make_unique<Engine>(*decoder_, std::move(engine));
}

std::unique_ptr<WeightedModel> LoadedModel::make_decoder(const LoadOptions& options) {
  check_gpu(options);
  const DecoderWeights weights = store_.finish();
  if (options.gpu == nullptr) {
    DecoderOptions chosen;
    chosen.input_type = input_type_;
    chosen.cache_type = cache_type_;
    chosen.max_tokens = rows_of(options, spec_);
    chosen.pages = std::min(pages_of(options), kMostSplitPages);
    return std::make_unique<Decoder>(spec_, weights, kernels_.kernels, &threads_, chosen);
  }
  gpu_.emplace(*options.gpu);
  // Requests with `logprobs` above 0 are still sampled by the CPU's table.
  for (auto& [op, table] : kernels_.served_by) table = "cuda";
  CudaDecoderOptions chosen;
  chosen.cache_type = cache_type_;
  chosen.max_tokens = rows_of(options, spec_);
  chosen.max_sequences = options.max_sequences;
  if (options.speculation.value_or(0) > 0) chosen.max_drafts = most_scored_rows(spec_.vocab_size);
  chosen.pages = pages_of(options);
  // The host's copy is freed when the GPU has the weights, so the fingerprint is taken meanwhile.
  Background fingerprint([this] { fingerprint_ = store_.digest(); });
  auto decoder = std::make_unique<CudaDecoder>(spec_, weights, gpu_->plugin, gpu_->stream.get(),
                                               &threads_, chosen);
  weight_bytes_ = decoder->weight_bytes();
  fingerprint.wait();
  store_.release();
  return decoder;
}

OwnedPools LoadedModel::make_pools(const MemoryAmount& amount, ThreadPool* threads,
                                   cuda::SpareMemory* spare) const {
  const auto allocate = [&](int64_t bytes) -> std::unique_ptr<PageMemory> {
    if (!gpu_) return std::make_unique<HostPages>(bytes, threads);
    const cuda::Runtime& runtime = gpu_->plugin.runtime;
    if (spare == nullptr) return std::make_unique<DevicePages>(bytes, runtime, gpu_->stream.get());
    return std::make_unique<DevicePages>(bytes, runtime, gpu_->stream.get(), spare);
  };
  OwnedPools made;
  for (const CacheGroup& group : layers_.groups()) {
    if (group.shape < made.pages.size()) continue;  // shapes are in the order of the groups
    const PageShape shape = page_shape(group);
    const int64_t pages = amount.pages[group.shape];
    made.pages.emplace_back(shape, pages, allocate(pages * shape.bytes()),
                            poison_from_environment());
  }
  if (layers_.has_states()) {
    StepRunner* const runner = decoder_->step_runner();
    const int64_t lanes = StatePool::lanes_for(runner == nullptr ? 1 : runner->most_in_flight());
    made.states.emplace(layers_.lane_bytes(), lanes, amount.states,
                        allocate(amount.states * lanes * layers_.lane_bytes()),
                        poison_from_environment());
  }
  return made;
}

OwnedPools LoadedModel::make_cache_pools(const Window& window, int64_t batch,
                                         int64_t max_length) const {
  return make_pools(ForwardCache::memory_needed(layers_, window, batch, max_length), nullptr,
                    spare_.get());
}

void LoadedModel::close() {
  engine_->close();
  if (!engine_->is_owner_process()) return;
  const std::lock_guard lock(store_mutex_);
  is_released_ = true;
  store_.release();
  decoder_->release();  // waits for work in flight, which uses the pools
  memory_.release();
  if (spare_) spare_->close();
}

std::string LoadedModel::fingerprint() {
  const std::lock_guard lock(store_mutex_);
  if (is_released_) throw EngineDead("fingerprint: the model is closed. Load it again.");
  if (fingerprint_.empty()) fingerprint_ = store_.digest();
  return fingerprint_;
}

int64_t LoadedModel::bytes_per_token() const {
  int64_t bytes = 0;
  for (const CacheGroup& group : layers_.groups()) {
    bytes += group.count() * page_shape(group).bytes() / kPageRows;
  }
  return bytes;
}

int64_t LoadedModel::bytes_per_sequence() const {
  return pools_.bytes_of(layers_.most_memory(window_));
}

std::unique_ptr<ForwardCache> LoadedModel::new_cache(int64_t batch, const Window& window) const {
  return std::make_unique<ForwardCache>(serial_, make_cache_pools(window, batch, kEndlessLength),
                                        layers_, window, batch, kEndlessLength);
}

std::unique_ptr<ForwardCache> LoadedModel::copy_of(const ForwardCache& cache) const {
  return std::make_unique<ForwardCache>(
      cache, make_cache_pools(cache.asked, cache.batch(), cache.row().max_length()), layers_);
}

void LoadedModel::evict_range(ForwardCache* cache, int64_t begin, int64_t end) {
  const auto evict = [&] {
    for (auto& row : cache->rows) decoder_->evict_range(row.get(), begin, end);
  };
  engine_->between_steps(evict, "evict_range");
}

void LoadedModel::forward(const std::vector<int32_t>& ids, int64_t batch, int64_t tokens,
                          ForwardCache* cache, float* logits,
                          const std::function<void()>& check_signals) {
  std::unique_ptr<ForwardCache> dense;
  if (cache == nullptr) {
    const Window window{0, tokens};
    dense = std::make_unique<ForwardCache>(serial_, make_cache_pools(window, batch, tokens),
                                           layers_, window, batch, tokens);
    cache = dense.get();
  }
  // All rows in one call if they fit: its logits are then [batch, tokens, vocab]. Otherwise row by
  // row, so that the logits of each call are contiguous.
  const int64_t together = batch * tokens <= decoder_->max_tokens() ? batch : 1;
  const int64_t chunk = std::min(tokens, decoder_->max_tokens());
  std::vector<ForwardSpan> spans(together);
  for (int64_t t = 0; t < tokens; t += chunk) {
    if (t > 0) check_signals();
    for (int64_t row = 0; row < batch; row += together) {
      for (int64_t i = 0; i < together; ++i) {
        spans[i] = {cache->rows[row + i].get(), ids.data() + (row + i) * tokens + t,
                    std::min(chunk, tokens - t), LogitsOf::kAll};
      }
      float* out = logits + (row * tokens + t) * spec_.vocab_size;
      engine_->between_steps([&] { forward_and_advance(*decoder_, spans, out); });
    }
  }
}

}  // namespace sinkstream
