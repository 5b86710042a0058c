// A loaded model: weights, threads, kernels, decoder, pages and engine, in the order of their
// dependencies. Knows nothing about torch or Python.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/choose.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/memory.h"
#include "model/cpu/decoder.h"
#include "runtime/forward_cache.h"

namespace sinkstream {

// The options of `load`, validated; only "auto" and 0 are still unresolved.
struct LoadOptions {
  std::string dtype = "auto";     // auto, float32, bfloat16, int16, int8
  std::string kv_dtype = "auto";  // auto, float32, float16, bfloat16, int8
  int64_t sinks = 4;
  int64_t window = 1;
  int64_t max_sequences = 1;
  int64_t prefill_chunk = 0;                // 0: the default
  int64_t threads = 0;                      // 0: usable_threads()
  std::optional<int64_t> speculation = {};  // EngineOptions::speculation
  std::string kernels;                      // a table's name; empty: the best
  const cuda::Plugin* gpu = nullptr;        // null: the CPU
};

class LoadedModel {
 public:
  LoadedModel(const DecoderSpec& spec, WeightStore&& store, const LoadOptions& options,
              std::shared_ptr<const TokenTable> tokens, std::vector<int32_t> end_token_ids);
  // Ends the generation thread, waits for the steps in flight, and frees the memory. Call it
  // without the GIL. May be called again; does nothing in a forked child.
  void close();

  // WeightStore::digest. The first call computes it in the caller's thread, which takes about as
  // long as reading the weights once; streams continue in the meantime, and `close` waits. Throws
  // EngineDead after `close`. Call it without the GIL.
  std::string fingerprint();

  int64_t serial() const { return serial_; }
  const DecoderSpec& spec() const { return spec_; }
  const CacheLayers& layers() const { return layers_; }
  const ChosenKernels& kernels() const { return kernels_; }
  const Window& window() const { return window_; }
  Engine& engine() { return *engine_; }
  int threads() const { return threads_.threads(); }
  bool is_on_gpu() const { return gpu_.has_value(); }
  InputType input_type() const { return input_type_; }
  DType cache_type() const { return cache_type_; }
  int64_t prefill_chunk() const { return prefill_chunk_; }
  int64_t max_sequences() const { return max_sequences_; }
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t weight_bytes_per_token() const { return store_.bytes_per_token(); }
  int64_t scratch_bytes() const { return decoder_->scratch_bytes() + engine_->scratch_bytes(); }
  int64_t cache_bytes() const { return memory_.bytes(); }
  int64_t bytes_per_token() const;     // of one live token's keys and values in all layers
  int64_t bytes_per_sequence() const;  // the cache of an endless sequence, its states included
  // Of those, the slot of its states, all lanes included; 0: no layer has a state.
  int64_t state_bytes_per_sequence() const { return pools_.bytes_of({.states = 1}); }
  // GPU memory that freed ForwardCaches have left for the next one, at most cache_bytes().
  int64_t spare_cache_bytes() const { return spare_ ? spare_->kept_bytes() : 0; }

  std::unique_ptr<ForwardCache> new_cache(int64_t batch, const Window& window) const;
  std::unique_ptr<ForwardCache> copy_of(const ForwardCache& cache) const;
  // Removes the tokens with ranks [begin, end) from every row (WeightedModel::evict_range).
  void evict_range(ForwardCache* cache, int64_t begin, int64_t end);

  // Appends `ids` [batch, tokens] to the cache (null: none, plain dense attention) and writes
  // `logits` [batch, tokens, vocab]. Runs on the generation thread chunk by chunk, so that streams
  // continue in between. Calls `check_signals` between chunks; if that throws, the forward pass
  // ends, and the earlier chunks stay in the cache.
  void forward(const std::vector<int32_t>& ids, int64_t batch, int64_t tokens, ForwardCache* cache,
               float* logits, const std::function<void()>& check_signals);

 private:
  // A GPU, and the CUDA stream on it that this model uses.
  struct Gpu {
    explicit Gpu(const cuda::Plugin& plugin) : plugin(plugin), stream(plugin.runtime) {}
    const cuda::Plugin& plugin;
    cuda::UniqueStream stream;
  };

  std::unique_ptr<WeightedModel> make_decoder(const LoadOptions& options);
  PageShape page_shape(const CacheGroup& group) const {
    return decoder_->page_shape(group.layers.front());
  }
  // `threads` speed up the allocation of the host's memory; both may be null.
  OwnedPools make_pools(const MemoryAmount& amount, ThreadPool* threads,
                        cuda::SpareMemory* spare) const;
  OwnedPools make_cache_pools(const Window& window, int64_t batch, int64_t max_length) const;

  int64_t serial_;  // unique in this process; ForwardCache::model
  DecoderSpec spec_;
  CacheLayers layers_;
  WeightStore store_;
  std::mutex store_mutex_;  // held while the weights are digested or freed
  bool is_released_ = false;
  std::string fingerprint_;  // empty until it is computed
  Window window_;
  int64_t max_sequences_;
  int64_t prefill_chunk_;
  ChosenKernels kernels_;
  ThreadPool threads_;
  std::optional<Gpu> gpu_;
  InputType input_type_;
  DType cache_type_;
  int64_t weight_bytes_;
  std::unique_ptr<WeightedModel> decoder_;
  OwnedPools memory_;                         // of the engine's sequences
  MemoryPools pools_;                         // the same
  std::unique_ptr<cuda::SpareMemory> spare_;  // of ForwardCaches; null on a CPU
  std::unique_ptr<Engine> engine_;            // last: its thread uses everything above
};

}  // namespace sinkstream
