// A small model on an emulated GPU, and caches in its memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "cache/device_pages.h"
#include "model/cuda/decoder.h"

#include "model/random_decoder.h"

namespace sinkstream {

inline constexpr int64_t kEndless = int64_t{1} << 60;

// As small as the kernels allow, with three query heads per key head.
inline DecoderSpec gpu_spec() {
  DecoderSpec spec = small_spec();
  spec.hidden_size = 40;
  BlockSpec& block = spec.blocks.front();
  block.dense().intermediate_size = 72;
  block.attention().heads = 6;
  block.attention().kv_heads = 2;
  block.attention().head_dim = 16;
  block.attention().scale = usual_scale(16);
  block.attention().rope = rope_with(6, 10000);  // of 8 pairs: the rest is not rotated
  return spec;
}

inline std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

// Poisoned pages in GPU memory.
inline PagePool gpu_pool(const cuda::Plugin& plugin, const PageShape& shape, int64_t pages) {
  return PagePool(shape, pages,
                  std::make_unique<DevicePages>(pages * shape.bytes(), plugin.runtime, nullptr),
                  true);
}

inline OwnedPools gpu_pools(const cuda::Plugin& plugin, const WeightedModel& model,
                            const CacheLayers& layers, const MemoryAmount& amount) {
  return poisoned_pools(model, layers, amount, [&](const PageShape& shape, int64_t pages) {
    return gpu_pool(plugin, shape, pages);
  });
}

// Caches with one window, in poisoned pools of their own.
struct GpuCaches {
  GpuCaches(const cuda::Plugin& plugin, const CudaDecoder& decoder, const CacheLayers& layers,
            const Window& window, int64_t count = 1)
      : memory(gpu_pools(plugin, decoder, layers,
                         count * SequenceCache::memory_needed(window, layers, kEndless))) {
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(std::make_unique<SequenceCache>(memory.pools(), window, layers, kEndless));
    }
  }
  SequenceCache& operator[](size_t i) { return *all[i]; }

  OwnedPools memory;
  std::vector<std::unique_ptr<SequenceCache>> all;
};

}  // namespace sinkstream
