#include "bindings/native_model.h"

#include <algorithm>
#include <atomic>

#include "common/check.h"
#include "common/usable_threads.h"

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

// 256 tokens share each pass over the weights, and their activations stay in the nearer caches.
int64_t chunk_of(const NativeOptions& options) {
  return options.prefill_chunk > 0 ? options.prefill_chunk : 256;
}

// Four rows more cost no more than the first one, which waits for memory, not for arithmetic
// (engine_bench.py, long_prompt). Where a chunk is cut changes no result here.
constexpr int64_t kPromptBesideDecoding = 4;

// What attention may split over pages: a window of 8,192 for kSplitRows rows, 131,072 for one row.
// Larger ones are attended without, and the scratch does not grow with the window.
constexpr int64_t kMostSplitPages = 128;

DecoderOptions decoder_options(const NativeOptions& options, const Kernels& kernels) {
  DecoderOptions chosen;
  chosen.input_type = options.dtype == "auto" ? kernels.native_input : input_type_of(options.dtype);
  // float16 holds keys and values with eight times bfloat16's precision in the same bytes.
  chosen.cache_type = options.kv_dtype == "auto" ? DType::kFloat16 : dtype_of(options.kv_dtype);
  // A step has room for a chunk of a prompt and one token of every sequence.
  chosen.max_tokens = chunk_of(options) + options.max_sequences;
  chosen.pages = std::min(Window{options.sinks, options.window}.most_pages(), kMostSplitPages);
  return chosen;
}

int64_t next_serial() {
  static std::atomic<int64_t> next{0};
  return next.fetch_add(1);
}

}  // namespace

NativeModel::NativeModel(const DecoderSpec& spec, WeightStore&& store, const NativeOptions& options,
                         std::shared_ptr<const TokenTable> tokens,
                         std::vector<int32_t> end_token_ids)
    : serial_(next_serial()),
      spec_(spec),
      store_(std::move(store)),
      window_{options.sinks, options.window},
      max_sequences_(options.max_sequences),
      prefill_chunk_(chunk_of(options)),
      kernels_(choose_kernels(options.kernels)),
      threads_(options.threads > 0 ? static_cast<int>(options.threads) : usable_threads()),
      decoder_options_(decoder_options(options, kernels_.kernels)),
      decoder_(spec, store_.finish(), kernels_.kernels, &threads_, decoder_options_),
      pool_(decoder_.page_shape(), max_sequences_ * spec.layers * window_.most_pages(),
            poison_from_environment(), &threads_) {
  EngineOptions engine;
  engine.pool = &pool_;
  engine.layers = spec.layers;
  engine.window = window_;
  engine.max_sequences = max_sequences_;
  engine.prefill_chunk = prefill_chunk_;
  engine.prompt_beside_decoding = kPromptBesideDecoding;
  engine.kernels = &kernels_.kernels;
  engine.threads = &threads_;
  engine.tokens = std::move(tokens);
  engine.end_token_ids = std::move(end_token_ids);
  engine_ = std::make_unique<Engine>(decoder_, std::move(engine));
}

void NativeModel::close() {
  engine_->close();
  if (!engine_->is_owner_process()) return;
  const std::lock_guard lock(store_mutex_);
  is_given_back_ = true;
  store_.give_back();
  pool_.give_back();
  decoder_.give_back();
}

std::string NativeModel::fingerprint() {
  const std::lock_guard lock(store_mutex_);
  if (is_given_back_) throw EngineDead("fingerprint: the model is closed. Load it again.");
  if (fingerprint_.empty()) fingerprint_ = store_.digest();
  return fingerprint_;
}

int64_t NativeModel::bytes_per_token() const {
  return spec_.layers * decoder_.page_shape().bytes() / kPageRows;
}

int64_t NativeModel::bytes_per_sequence() const {
  return spec_.layers * window_.most_pages() * decoder_.page_shape().bytes();
}

std::unique_ptr<ForwardCache> NativeModel::new_cache(int64_t batch, const Window& window) const {
  return std::make_unique<ForwardCache>(serial_, decoder_.page_shape(), spec_.layers, window, batch,
                                        kEndlessLength);
}

std::unique_ptr<ForwardCache> NativeModel::copy_of(const ForwardCache& cache) const {
  return std::make_unique<ForwardCache>(cache, spec_.layers);
}

void NativeModel::evict_range(ForwardCache* cache, int64_t begin, int64_t end) {
  const auto evict = [&] {
    for (auto& row : cache->rows) decoder_.evict_range(row.get(), begin, end);
  };
  engine_->between_steps(evict, "evict_range");
}

void NativeModel::forward(const std::vector<int32_t>& ids, int64_t batch, int64_t tokens,
                          ForwardCache* cache, float* logits,
                          const std::function<void()>& look_up) {
  std::unique_ptr<ForwardCache> dense;
  if (cache == nullptr) {
    dense = std::make_unique<ForwardCache>(serial_, decoder_.page_shape(), spec_.layers,
                                           Window{0, tokens}, batch, tokens);
    cache = dense.get();
  }
  // All rows in one call where they fit: its logits lie as [batch, tokens, vocab] then. Else row by
  // row, so that every call's logits are one contiguous piece.
  const int64_t together = batch * tokens <= decoder_.max_tokens() ? batch : 1;
  const int64_t chunk = std::min(tokens, decoder_.max_tokens());
  std::vector<ForwardSpan> spans(together);
  for (int64_t t = 0; t < tokens; t += chunk) {
    if (t > 0) look_up();
    for (int64_t row = 0; row < batch; row += together) {
      for (int64_t i = 0; i < together; ++i) {
        spans[i] = {cache->rows[row + i].get(), ids.data() + (row + i) * tokens + t,
                    std::min(chunk, tokens - t), LogitsOf::kAll};
      }
      float* out = logits + (row * tokens + t) * spec_.vocab_size;
      engine_->between_steps([&] { decoder_.forward(spans, out); });
    }
  }
}

}  // namespace sinkstream
