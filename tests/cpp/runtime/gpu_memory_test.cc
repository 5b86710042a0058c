// Caches of `forward` on a GPU use memory again: allocating and freeing would stop all streams.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "runtime/loaded_model.h"

#include "cuda/counting_gpu.h"
#include "cuda/gpu_model.h"

namespace sinkstream {
namespace {

constexpr int64_t kTokens = 30;

std::unique_ptr<LoadedModel> load(const cuda::CountingGpu& gpu) {
  LoadOptions options;
  options.sinks = 4;
  options.window = 60;
  options.max_sequences = 2;
  options.prefill_chunk = 8;
  options.threads = 1;
  options.gpu = &gpu.plugin();
  const DecoderSpec spec = gpu_spec();
  RandomWeights random(spec);
  return std::make_unique<LoadedModel>(spec, std::move(random.store), options, nullptr,
                                       std::vector<int32_t>());
}

std::vector<float> forward(LoadedModel& model, int64_t tokens, ForwardCache* cache) {
  const int64_t vocab = model.spec().vocab_size;
  std::vector<float> logits(tokens * vocab, NAN);
  model.forward(random_tokens(tokens, vocab, 3), 1, tokens, cache, logits.data(), [] {});
  return logits;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(GpuMemory, OfForwardsIsAllocatedOnce) {
  const cuda::CountingGpu gpu;
  const auto model = load(gpu);
  EXPECT_EQ(model->spare_cache_bytes(), 0);
  const int64_t loaded = gpu.bytes();
  const std::vector<float> expected = forward(*model, kTokens, nullptr);
  EXPECT_EQ(gpu.bytes(), loaded + model->spare_cache_bytes());
  const int64_t calls = gpu.calls(), kept = model->spare_cache_bytes();
  EXPECT_GT(kept, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(forward(*model, kTokens, nullptr), expected));
    forward(*model, 1 + i, nullptr);
    EXPECT_EQ(model->spare_cache_bytes(), kept);
  }
  EXPECT_EQ(gpu.calls(), calls);
}

TEST(GpuMemory, OfCachesAndCopiesIsAllocatedOnce) {
  const cuda::CountingGpu gpu;
  const auto model = load(gpu);
  const int64_t loaded = gpu.bytes();
  std::vector<float> expected;
  int64_t calls = 0;
  for (int i = 0; i < 3; ++i) {
    const auto cache = model->new_cache(1, model->window());
    const std::vector<float> logits = forward(*model, kTokens, cache.get());
    const auto copy = model->copy_of(*cache);
    EXPECT_EQ(cache->memory.bytes(), model->bytes_per_sequence());
    EXPECT_EQ(gpu.bytes(), loaded + cache->memory.bytes() + copy->memory.bytes());
    EXPECT_EQ(model->spare_cache_bytes(), 0);
    if (i == 0) expected = logits;
    EXPECT_TRUE(same_bits(logits, expected)) << "what a freed cache held is not seen";
    EXPECT_TRUE(
        same_bits(forward(*model, kTokens, cache.get()), forward(*model, kTokens, copy.get())));
    if (i == 0) calls = gpu.calls();
  }
  EXPECT_EQ(gpu.calls(), calls);
  EXPECT_EQ(model->spare_cache_bytes(), model->cache_bytes()) << "two sequences, the most";
  EXPECT_EQ(gpu.bytes(), loaded + model->spare_cache_bytes());
}

TEST(GpuMemory, BeyondTheModelsOwnCacheIsFreed) {
  const cuda::CountingGpu gpu;
  const auto model = load(gpu);
  const int64_t loaded = gpu.bytes();
  EXPECT_GT(model->new_cache(3, model->window())->memory.bytes(), model->cache_bytes());
  EXPECT_EQ(model->spare_cache_bytes(), 0);
  EXPECT_EQ(gpu.bytes(), loaded);
}

TEST(GpuMemory, ThatOneModelKeepsIsFreedForAnother) {
  cuda::CountingGpu gpu;
  const auto first = load(gpu);
  const int64_t of_a_model = gpu.bytes();
  const std::vector<float> expected = forward(*first, kTokens, nullptr);
  const int64_t kept = first->spare_cache_bytes();
  gpu.set_memory(2 * of_a_model + kept - 1);
  const auto second = load(gpu);
  EXPECT_EQ(first->spare_cache_bytes(), 0);
  gpu.set_memory(2 * of_a_model + kept);
  EXPECT_TRUE(same_bits(forward(*second, kTokens, nullptr), expected));
  EXPECT_EQ(second->spare_cache_bytes(), kept);
  EXPECT_TRUE(same_bits(forward(*first, kTokens, nullptr), expected));
  EXPECT_EQ(first->spare_cache_bytes(), kept) << "taken from the second";
  EXPECT_EQ(second->spare_cache_bytes(), 0);
  EXPECT_THROW(second->new_cache(1, second->window()), CapacityError)
      << "more than all that is kept";
  EXPECT_EQ(gpu.bytes(), 2 * of_a_model);
}

TEST(GpuMemory, IsFreedWhenTheModelIsClosed) {
  const cuda::CountingGpu gpu;
  auto model = load(gpu);
  auto late = model->new_cache(1, model->window());
  forward(*model, kTokens, nullptr);
  EXPECT_GT(model->spare_cache_bytes(), 0);
  model->close();
  EXPECT_EQ(model->spare_cache_bytes(), 0);
  late.reset();
  EXPECT_EQ(model->spare_cache_bytes(), 0);
  model.reset();
  EXPECT_EQ(gpu.bytes(), 0);
  EXPECT_EQ(gpu.pinned_bytes(), 0);
}

}  // namespace
}  // namespace sinkstream
