#include "model/cuda/decoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "common/errors.h"

#include "cuda/emulated_gpu.h"
#include "cuda/gpu_model.h"
#include "cuda_emulator/block.h"
#include "cuda_emulator/orders.h"
#include "kernels/tolerance.h"
#include "lanes.h"

namespace sinkstream {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One model twice: on the CPU and on a GPU.
struct Twins {
  explicit Twins(DType cache_type, const std::map<std::string, Storage>& stored = {},
                 const DecoderSpec& spec = gpu_spec())
      : processor(generic_kernels(), 2, {InputType::kBFloat16, cache_type, kMostTokens}, spec,
                  stored),
        gpu(processor.spec, processor.packed(), cuda::emulated_plugin(), nullptr, &threads,
            {cache_type, kMostTokens, 8, 4}) {}

  static constexpr int64_t kMostTokens = 320;
  int64_t vocab() const { return gpu.vocab(); }
  CacheLayers layers() const { return processor.spec.cache_layers(); }
  WeightedModel& model(bool on_gpu) {
    return on_gpu ? static_cast<WeightedModel&>(gpu) : *processor.decoder;
  }

  RandomDecoder processor;
  ThreadPool threads{2};
  CudaDecoder gpu;
};

OwnedPools poisoned_memory(Twins& twins, const MemoryAmount& amount, bool on_gpu) {
  const WeightedModel& model = twins.model(on_gpu);
  if (!on_gpu) return poisoned_pools(model, twins.layers(), amount);
  return gpu_pools(cuda::emulated_plugin(), model, twins.layers(), amount);
}

// Caches with one window, in poisoned pools of their own.
struct Sequences {
  Sequences(Twins& twins, const Window& window, bool on_gpu, int64_t count = 1)
      : memory(poisoned_memory(
            twins, count * SequenceCache::memory_needed(window, twins.layers(), kEndless),
            on_gpu)) {
    for (int64_t i = 0; i < count; ++i) {
      caches.push_back(
          std::make_unique<SequenceCache>(memory.pools(), window, twins.layers(), kEndless));
    }
  }
  SequenceCache& operator[](size_t i) { return *caches[i]; }

  OwnedPools memory;
  std::vector<std::unique_ptr<SequenceCache>> caches;
};

// The logits of all tokens, in chunks of `chunk`.
std::vector<float> logits_of(Twins& twins, bool on_gpu, SequenceCache* cache,
                             const std::vector<int32_t>& tokens, int64_t chunk) {
  const int64_t count = std::ssize(tokens);
  std::vector<float> logits(count * twins.vocab(), NAN);
  for (int64_t t = 0; t < count; t += chunk) {
    const ForwardSpan span{cache, tokens.data() + t, std::min(chunk, count - t), LogitsOf::kAll};
    forward_and_advance(twins.model(on_gpu), {&span, 1}, logits.data() + t * twins.vocab());
  }
  return logits;
}

double scale_of(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

// Compares with the CPU's logits, within the tolerance of `cache_type`. Both round the inputs of
// each linear map to bfloat16.
void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                 DType cache_type) {
  ASSERT_EQ(actual.size(), expected.size());
  const double tolerance = std::max(tolerance_of(DType::kBFloat16), tolerance_of(cache_type));
  EXPECT_LE(worst_error(actual.data(), expected.data(), std::ssize(actual), scale_of(expected)),
            tolerance);
}

class CudaDecoderOfType : public testing::TestWithParam<DType> {};

TEST_P(CudaDecoderOfType, AgreesWithTheProcessorFarPastTheWindow) {
  Twins twins(GetParam());
  for (const auto& [window, chunk] : {std::pair{Window{4, 9}, 77},
                                      {Window{0, 64}, 300},
                                      {Window{3, 70}, 77},
                                      {Window{66, 5}, 220}}) {
    const auto tokens = random_tokens(300, twins.vocab(), 1);
    Sequences here(twins, window, false), there(twins, window, true);
    const auto expected = logits_of(twins, false, &here[0], tokens, 300);
    expect_near(logits_of(twins, true, &there[0], tokens, chunk), expected, GetParam());
    EXPECT_EQ(there[0].length(), 300);
  }
}

TEST_P(CudaDecoderOfType, ChunkSizeChangesNoBit) {
  Twins twins(GetParam());
  const auto tokens = random_tokens(240, twins.vocab(), 2);
  std::vector<Window> windows = {{4, 9}, {0, 80}, {1, 70}, {70, 5}};
#if defined(__SANITIZE_THREAD__)
  windows.resize(1);  // one is enough to find races: all four take a quarter of an hour
#endif
  for (const auto& [s, window] : indexed(windows)) {
    Sequences whole(twins, window, true);
    const auto expected = logits_of(twins, true, &whole[0], tokens, 240);
    for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
    std::vector<int64_t> chunks = {63, 64, 65, 200, window.window + 1, 3 * window.capacity()};
    if (window.window < 10) chunks.push_back(1);
    for (const auto& [i, chunk] : indexed(chunks)) {
      if (!runs_case(3, {static_cast<int64_t>(GetParam()), s, i})) continue;
      Sequences cut(twins, window, true);
      EXPECT_TRUE(same_bits(expected, logits_of(twins, true, &cut[0], tokens, chunk)))
          << "S " << window.sinks << " W " << window.window << " chunk " << chunk;
    }
  }
}

// Layers that alternate between a window of their own and none.
DecoderSpec alternating_gpu_spec() { return with_windows(gpu_spec(), {32, 0}); }

TEST(CudaDecoder, AgreesWithTheProcessorWhereLayersHaveTheirOwnWindows) {
  Twins twins(DType::kFloat16, {}, alternating_gpu_spec());
  const auto tokens = random_tokens(330, twins.vocab(), 1),
             more = random_tokens(90, twins.vocab(), 2);
  // Wider than theirs, and narrower.
  for (const Window window : {Window{3, 70}, Window{4, 31}}) {
    Sequences here(twins, window, false), there(twins, window, true);
    const auto expected = logits_of(twins, false, &here[0], tokens, 300);
    expect_near(logits_of(twins, true, &there[0], tokens, 97), expected, DType::kFloat16);
    for (const auto& [on_gpu, cache] : {std::pair{false, &here[0]}, {true, &there[0]}}) {
      twins.model(on_gpu).evict_range(cache, 10, 20);
    }
    const auto after = logits_of(twins, false, &here[0], more, 50);
    expect_near(logits_of(twins, true, &there[0], more, 90), after, DType::kFloat16);
  }
}

TEST(CudaDecoder, ChunkSizeChangesNoBitWhereLayersHaveTheirOwnWindows) {
  Twins twins(DType::kInt8, {}, alternating_gpu_spec());
  const auto tokens = random_tokens(240, twins.vocab(), 2);
  const Window window{1, 70};
  Sequences whole(twins, window, true);
  const auto expected = logits_of(twins, true, &whole[0], tokens, 240);
  for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
  for (const int64_t chunk : {1, 33, 64, 150}) {
    Sequences cut(twins, window, true);
    EXPECT_TRUE(same_bits(expected, logits_of(twins, true, &cut[0], tokens, chunk))) << chunk;
  }
}

// A model whose layers have blocks of several families.
DecoderSpec mixed_spec(uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<NamedSpec> kinds = special_specs(gpu_spec());
  DecoderSpec spec = gpu_spec();
  spec.blocks.clear();
  spec.block_of_layer.clear();
  for (int32_t layer = 0; layer < 4; ++layer) {
    const std::vector<BlockSpec>& blocks = kinds[random() % kinds.size()].spec.blocks;
    BlockSpec block = blocks[random() % blocks.size()];
    block.dense().intermediate_size = 40 + 16 * static_cast<int64_t>(random() % 3);
    block.attention().window = random() % 3 == 0 ? 32 : 0;
    block.attention().scale = 0.1f;  // sharper attention lets roundings grow from layer to layer
    spec.blocks.push_back(block);
    spec.block_of_layer.push_back(layer);
  }
  spec.final_norm = {random() % 2 == 0 ? NormKind::kLayer : NormKind::kRms, 1e-4f, seed % 2 == 0};
  spec.embedding_scale = 3;
  spec.logit_scale = 0.5f;
  spec.logit_soft_cap = 4;
  return spec;
}

DecoderSpec wide_spec() {
  return with_blocks(gpu_spec(), [](BlockSpec* block) {
    block->attention().heads = 3;
    block->attention().kv_heads = 1;
    block->attention().head_dim = 320;
    block->attention().scale = usual_scale(320);
    block->attention().rope = rope_with(160, 10000);
  });
}

// What only some families have, at the sizes of a GPU.
std::vector<NamedSpec> gpu_specs() {
  std::vector<NamedSpec> specs = special_specs(gpu_spec());
  for (uint32_t seed = 1; seed <= 6; ++seed)
    specs.push_back({cat("mixed ", seed), mixed_spec(seed)});
  specs.push_back({"wide heads", wide_spec()});
  return specs;
}

// A name with one underscore for all between two words.
std::string as_test_name(const std::string& name) {
  std::string words;
  for (const char c : name) {
    const bool is_of_word =
        ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9');
    if (is_of_word) {
      words += c;
    } else if (words.empty() || words.back() != '_') {
      words += '_';
    }
  }
  return words;
}

// The parameter has the index of the spec.
class CudaDecoderOfSpec : public testing::TestWithParam<std::pair<int64_t, NamedSpec>> {};

TEST_P(CudaDecoderOfSpec, AgreesWithTheProcessorFarPastTheWindowAndAfterACut) {  // no tsan
  const auto& [index, named] = GetParam();
  Twins twins(DType::kFloat16, {}, named.spec);
  const auto tokens = random_tokens(300, twins.vocab(), 1),
             more = random_tokens(90, twins.vocab(), 2);
  for (const auto& [s, sizes] :
       indexed({std::pair{Window{4, 9}, 77}, {Window{3, 70}, 300}, {Window{66, 25}, 97}})) {
    if (!runs_case(2, {index, s})) continue;
    const auto [window, chunk] = sizes;
    SCOPED_TRACE(cat(named.name, ", S ", window.sinks, " W ", window.window));
    Sequences here(twins, window, false), there(twins, window, true);
    const auto expected = logits_of(twins, false, &here[0], tokens, 300);
    expect_near(logits_of(twins, true, &there[0], tokens, chunk), expected, DType::kFloat16);
    if (window.sinks == 66) continue;
    const int64_t begin = window.sinks + window.window / 2;
    for (const auto& [on_gpu, cache] : {std::pair{false, &here[0]}, {true, &there[0]}}) {
      twins.model(on_gpu).evict_range(cache, begin, begin + window.window / 4);
    }
    const auto after = logits_of(twins, false, &here[0], more, 50);
    expect_near(logits_of(twins, true, &there[0], more, 90), after, DType::kFloat16);
  }
}

TEST_P(CudaDecoderOfSpec, ChunkSizeChangesNoBit) {  // no tsan
  const NamedSpec& named = GetParam().second;
  Twins twins(DType::kInt8, {}, named.spec);
  const auto tokens = random_tokens(120, twins.vocab(), 2);
  const Window window{3, 40};
  Sequences whole(twins, window, true);
  const auto expected = logits_of(twins, true, &whole[0], tokens, 120);
  for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
  // With a chunk of one token, the first are read together if one window of single ones is enough.
  const int64_t together = are_some_cases_enough() ? 80 : 0;
  for (const int64_t chunk : {1, 33}) {
    const auto middle = tokens.begin() + (chunk == 1 ? together : 0);
    Sequences cut(twins, window, true);
    auto found = logits_of(twins, true, &cut[0], {tokens.begin(), middle}, 80);
    const auto rest = logits_of(twins, true, &cut[0], {middle, tokens.end()}, chunk);
    found.insert(found.end(), rest.begin(), rest.end());
    EXPECT_TRUE(same_bits(expected, found)) << named.name << ", chunk " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, CudaDecoderOfSpec, testing::ValuesIn(indexed(gpu_specs())),
                         [](const auto& info) { return as_test_name(info.param.second.name); });

// Five sequences of different lengths, some in prefill and some decoding, with random wanted
// logits.
TEST_P(CudaDecoderOfType, NeitherCompanyNorWhichLogitsAreWantedChangesABit) {
  Twins twins(GetParam());
  constexpr int64_t kSequences = 5;
  const Window window{4, 30};
  const int64_t vocab = twins.vocab();
  Sequences together(twins, window, true, kSequences), alone(twins, window, true, kSequences);
  std::mt19937 random(3);
  for (int step = 0; step < 25; ++step) {
    std::vector<std::vector<int32_t>> tokens(kSequences);
    std::vector<ForwardSpan> spans;
    std::vector<float> expected;
    for (int64_t i = 0; i < kSequences; ++i) {
      if (random() % 4 == 0) continue;
      const int64_t count = random() % 3 == 0 ? 1 + random() % 40 : 1;
      tokens[i] = random_tokens(count, vocab, random());
      const auto wish = static_cast<LogitsOf>(random() % 3);
      spans.push_back({&together[i], tokens[i].data(), count, wish});
      const auto all = logits_of(twins, true, &alone[i], tokens[i], count);
      const int64_t wanted = wish == LogitsOf::kNone ? 0 : wish == LogitsOf::kLast ? 1 : count;
      expected.insert(expected.end(), all.end() - wanted * vocab, all.end());
    }
    if (spans.empty()) continue;
    std::vector<float> logits(expected.size(), NAN);
    forward_and_advance(twins.gpu, spans, logits.data());
    ASSERT_TRUE(same_bits(logits, expected)) << "step " << step;
  }
}

TEST_P(CudaDecoderOfType, CutsAsTheProcessorDoes) {
  Twins twins(GetParam());
  const Window window{4, 100};
  for (const auto& [begin, end] : {std::pair{4, 5}, {10, 60}, {70, 103}, {40, 41}}) {
    Sequences here(twins, window, false), there(twins, window, true);
    const auto before = random_tokens(170, twins.vocab(), 4);
    logits_of(twins, false, &here[0], before, 170);
    logits_of(twins, true, &there[0], before, 170);
    twins.processor.decoder->evict_range(&here[0], begin, end);
    twins.gpu.evict_range(&there[0], begin, end);
    EXPECT_EQ(there[0].live(), here[0].live());
    const auto after = random_tokens(140, twins.vocab(), 5);
    const auto expected = logits_of(twins, false, &here[0], after, 140);
    const int64_t chunk = begin == 10 ? 13 : 140;
    expect_near(logits_of(twins, true, &there[0], after, chunk), expected, GetParam());
  }
  Sequences there(twins, window, true);
  EXPECT_THROW(twins.gpu.evict_range(&there[0], 3, 5), InvalidArgument);
}

TEST_P(CudaDecoderOfType, IsAsCloseAtIndexTenMillion) {
  Twins twins(GetParam());
  const Window window{4, 60};
  Sequences here(twins, window, false), there(twins, window, true);
  const auto sinks = random_tokens(4, twins.vocab(), 6);
  logits_of(twins, false, &here[0], sinks, 4);
  logits_of(twins, true, &there[0], sinks, 4);
  here[0].jump(10'000'000);
  there[0].jump(10'000'000);
  const auto tokens = random_tokens(150, twins.vocab(), 7);
  const auto expected = logits_of(twins, false, &here[0], tokens, 150);
  expect_near(logits_of(twins, true, &there[0], tokens, 50), expected, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Types, CudaDecoderOfType,
                         testing::Values(DType::kFloat16, DType::kBFloat16, DType::kInt8),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Maps that read the same input in several types, in any order, partly stacked into one matrix,
// through both kernels of linear maps.
TEST(CudaDecoder, AgreesWithTheProcessorOnAModelOfSeveralTypes) {
  Twins twins(DType::kFloat16, {{"layers.0.k", Storage::kBF16},
                                {"layers.0.v", Storage::kF16},
                                {"layers.0.gate", Storage::kF16},
                                {"layers.1.v", Storage::kBF16},
                                {"layers.1.up", Storage::kBF16}});
  const Window window{4, 30};
  const auto tokens = random_tokens(150, twins.vocab(), 10);
  Sequences here(twins, window, false), there(twins, window, true), cut(twins, window, true);
  const auto expected = logits_of(twins, false, &here[0], tokens, 150);
  const auto logits = logits_of(twins, true, &there[0], tokens, 150);
  expect_near(logits, expected, DType::kFloat16);
  EXPECT_TRUE(same_bits(logits, logits_of(twins, true, &cut[0], tokens, 7)));
}

// The reader of a map's output assumes one number of splits for all parts.
TEST(CudaDecoder, CutsKOfAMapInSeveralTypesAsThatOfOneMatrix) {
  DecoderSpec spec = gpu_spec();
  spec.block_of_layer = {0};
  spec.hidden_size = 768;
  const int64_t inner = spec.blocks.front().dense().intermediate_size = 2144;
  ASSERT_NE(cuda::linear_splits(2 * inner, spec.hidden_size),
            cuda::linear_splits(inner, spec.hidden_size));
  Twins twins(DType::kFloat16, {{"layers.0.up", Storage::kBF16}}, spec);
  const auto tokens = random_tokens(3, twins.vocab(), 11);
  Sequences here(twins, {4, 9}, false), there(twins, {4, 9}, true);
  const auto expected = logits_of(twins, false, &here[0], tokens, 3);
  expect_near(logits_of(twins, true, &there[0], tokens, 3), expected, DType::kFloat16);
}

// Longer than the number of pages planned for.
TEST(CudaDecoder, ReadsALongTextWithoutAWindow) {
  Twins twins(DType::kFloat16);
  const Window dense{0, 300};
  const auto tokens = random_tokens(300, twins.vocab(), 8);
  Sequences here(twins, dense, false), there(twins, dense, true);
  const auto expected = logits_of(twins, false, &here[0], tokens, 300);
  const auto logits = logits_of(twins, true, &there[0], tokens, 299);  // the last token alone
  expect_near(logits, expected, DType::kFloat16);
}

TEST(CudaDecoder, GivesTheSameBitsOnAGpuWithLittleSharedMemory) {
  const auto logits = [](DType cache_type) {
    Twins twins(cache_type);
    const auto tokens = random_tokens(200, twins.vocab(), 2);
    Sequences sequences(twins, {4, 70}, true);
    return logits_of(twins, true, &sequences[0], tokens, 150);
  };
  for (const DType cache_type : {DType::kFloat16, DType::kInt8}) {
    const auto expected = logits(cache_type);
    const cuda::emulator::SharedLimit limit(99 * 1024);  // as compute capability 8.6
    EXPECT_TRUE(same_bits(logits(cache_type), expected));
  }
}

// Spans that need a scratch page each, of caches in different pools, and one that decodes. With
// scratch pages for one sequence they run in rounds.
TEST(CudaDecoder, LongSpansInOneStepAreWhatTheyAreAlone) {
  constexpr int64_t kBefore = 120;
  const std::vector<std::pair<Window, int64_t>> asked = {
      {{4, 40}, 90}, {{0, 64}, 9},  {{0, 64}, 10},  {{4, 9}, 1},
      {{0, 64}, 10}, {{0, 64}, 10}, {{1, 100}, 100}};
  Twins twins(DType::kInt8);
  std::vector<std::vector<int32_t>> tokens;
  std::vector<float> expected;
  for (const auto& [window, count] : asked) {
    tokens.push_back(random_tokens(kBefore + count, twins.vocab(), count));
    Sequences there(twins, window, true);
    const auto alone = logits_of(twins, true, &there[0], tokens.back(), 64);
    expected.insert(expected.end(), alone.begin() + kBefore * twins.vocab(), alone.end());
  }
  for (const int64_t max_sequences : {8, 1}) {
    CudaDecoder gpu(twins.processor.spec, twins.processor.packed(), cuda::emulated_plugin(),
                    nullptr, nullptr, {DType::kInt8, Twins::kMostTokens, max_sequences, 4});
    std::vector<std::unique_ptr<Sequences>> together;
    std::vector<ForwardSpan> spans;
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto& [window, count] = asked[i];
      together.push_back(std::make_unique<Sequences>(twins, window, true));
      SequenceCache* cache = &(*together[i])[0];
      const ForwardSpan before{cache, tokens[i].data(), kBefore, LogitsOf::kNone};
      forward_and_advance(gpu, {&before, 1}, nullptr);
      spans.push_back({cache, tokens[i].data() + kBefore, count, LogitsOf::kAll});
    }
    ForwardPlan plan(Twins::kMostTokens,
                     ForwardPlan::most_scratch_pages(Twins::kMostTokens, max_sequences));
    plan.make(spans);
    EXPECT_EQ(plan.groups[0].rounds.size(), max_sequences == 1 ? 2u : 1u);
    std::vector<float> logits(expected.size(), NAN);
    forward_and_advance(gpu, spans, logits.data());
    EXPECT_TRUE(same_bits(logits, expected)) << plan.groups[0].rounds.size() << " rounds";
  }
}

// After a long chunk decoding continues as after small ones, for more than two turns of the ring.
TEST(CudaDecoder, DecodesAfterALongChunkThatBeganInsideABlock) {
  Twins twins(DType::kInt8);
  const Window window{4, 40};
  const auto tokens = random_tokens(460, twins.vocab(), 10);
  Sequences small(twins, window, true), large(twins, window, true);
  const auto expected = logits_of(twins, true, &small[0], tokens, 64);
  std::vector<float> logits;
  int64_t t = 0;
  for (const auto& [end, chunk] : {std::pair{30, 30}, {180, 150}, {200, 1}, {460, 13}}) {
    const auto some =
        logits_of(twins, true, &large[0], {tokens.begin() + t, tokens.begin() + end}, chunk);
    logits.insert(logits.end(), some.begin(), some.end());
    t = end;
  }
  EXPECT_TRUE(same_bits(logits, expected));
}

TEST(CudaDecoder, ALongChunkAfterACutIsWhatSmallOnesAre) {
  Twins twins(DType::kInt8);
  const Window window{4, 70};
  const auto before = random_tokens(110, twins.vocab(), 11);
  const auto after = random_tokens(170, twins.vocab(), 12);
  for (const bool from_the_middle : {false, true}) {
    std::vector<float> logits[2];
    for (const int64_t chunk : {170, 50}) {
      Sequences there(twins, window, true);
      logits_of(twins, true, &there[0], before, 110);
      if (from_the_middle) {
        twins.gpu.evict_range(&there[0], 20, 60);
      } else {
        there[0].evict_for_space(50);
      }
      logits[chunk == 50] = logits_of(twins, true, &there[0], after, chunk);
    }
    EXPECT_TRUE(same_bits(logits[0], logits[1])) << from_the_middle;
  }
}

// Two caches that share pages, past the window, and two that never did. No logits of the long chunk
// are wanted.
void expect_that_a_long_chunk_of_a_fork_is_its_own(const DecoderSpec& spec) {
  Twins twins(DType::kFloat16, {}, spec);
  const Window window{4, 70};
  const MemoryAmount needed = SequenceCache::memory_needed(window, twins.layers(), kEndless);
  const auto before = random_tokens(150, twins.vocab(), 13);
  const auto long_chunk = random_tokens(220, twins.vocab(), 14);
  const auto own = random_tokens(100, twins.vocab(), 15),
             next = random_tokens(3, twins.vocab(), 16);
  std::vector<float> of_other, of_fork;
  for (const bool is_shared : {false, true}) {
    OwnedPools memory = poisoned_memory(twins, 2 * needed, true);
    SequenceCache other(memory.pools(), window, twins.layers(), kEndless);
    logits_of(twins, true, &other, before, 150);
    std::optional<SequenceCache> fork;
    if (is_shared) {
      fork.emplace(other, kEndless, 150);
      fork->make_writable(220);
      const ForwardSpan span{&*fork, long_chunk.data(), 220, LogitsOf::kNone};
      forward_and_advance(twins.gpu, {&span, 1}, nullptr);
    } else {
      fork.emplace(memory.pools(), window, twins.layers(), kEndless);
      logits_of(twins, true, &*fork, before, 150);
      logits_of(twins, true, &*fork, long_chunk, 64);
    }
    other.make_writable(100);
    const auto logits_of_other = logits_of(twins, true, &other, own, 50);
    const auto logits_of_fork = logits_of(twins, true, &*fork, next, 1);
    if (is_shared) {
      EXPECT_TRUE(same_bits(logits_of_other, of_other));
      EXPECT_TRUE(same_bits(logits_of_fork, of_fork));
    }
    of_other = logits_of_other;
    of_fork = logits_of_fork;
  }
}

TEST(CudaDecoder, ALongChunkOfAForkIsItsOwnAndLeavesTheOtherItsBits) {
  expect_that_a_long_chunk_of_a_fork_is_its_own(gpu_spec());
  expect_that_a_long_chunk_of_a_fork_is_its_own(two_shapes_spec(gpu_spec()));
}

TEST(CudaDecoder, SaysThatALaunchFailedAndCountsNoToken) {
  Twins twins(DType::kFloat16);
  Sequences there(twins, {4, 9}, true);
  const auto tokens = random_tokens(3, twins.vocab(), 9);
  cuda::emulator::fail_next_launch(2);
  try {
    logits_of(twins, true, &there[0], tokens, 3);
    FAIL() << "a launch failed, and no error was reported";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "cuda: embedding failed: an emulated failure.");
  }
  EXPECT_EQ(there[0].length(), 0);
}

TEST(CudaDecoder, RefusesSizesThatTheKernelsCannotCompute) {
  RandomDecoder odd(generic_kernels(), 1, {InputType::kBFloat16, DType::kFloat16, 8});
  try {
    const CudaDecoder decoder(odd.spec, odd.packed(), cuda::emulated_plugin(), nullptr, nullptr,
                              {});
    FAIL() << "heads of 14 numbers were accepted";
  } catch (const CheckpointError& error) {
    EXPECT_STREQ(error.what(),
                 "load: the head size must be a multiple of 16 on a GPU, but is 14. "
                 "Use `device=\"cpu\"`.");
  }
}

TEST(CudaDecoder, RefusesLayersThatItsKernelsDoNotCompute) {
  RandomDecoder model(generic_kernels(), 1, {InputType::kBFloat16, DType::kFloat16, 8}, gpu_spec());
  DecoderSpec recurrent = model.spec;
  recurrent.blocks[0].mixer = RecurrentSpec{.conv_size = 3};
  try {
    const CudaDecoder decoder(recurrent, model.packed(), cuda::emulated_plugin(), nullptr, nullptr,
                              {});
    FAIL() << "a layer without kernels was accepted";
  } catch (const CheckpointError& error) {
    EXPECT_STREQ(error.what(),
                 "load: a model on a GPU must not have recurrent layers, but this one has some. "
                 "Use `device=\"cpu\"`.");
  }
}

TEST(CudaDecoder, RefusesExpertsThatItsKernelsDoNotCompute) {
  const auto refusal = [](const DecoderSpec& spec, const std::map<std::string, Storage>& stored) {
    RandomDecoder model(generic_kernels(), 1, {InputType::kBFloat16, DType::kFloat16, 8}, spec,
                        stored);
    try {
      const CudaDecoder decoder(spec, model.packed(), cuda::emulated_plugin(), nullptr, nullptr,
                                {});
      ADD_FAILURE() << "experts without kernels were accepted";
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(expert_specs(gpu_spec(), 20)[0].spec, {}),
            "load: the size of an expert must be a multiple of 8 on a GPU, but is 20. "
            "Use `device=\"cpu\"`.");
  EXPECT_EQ(refusal(expert_specs(gpu_spec(), 24, 20)[1].spec, {}),
            "load: the size of the shared expert must be a multiple of 8 on a GPU, but is 20. "
            "Use `device=\"cpu\"`.");
  EXPECT_EQ(
      refusal(expert_specs(gpu_spec(), 24)[0].spec, {{"layers.1.experts.3.up", Storage::kBF16}}),
      "load: weight \"layers.1.experts.3.up\" must be stored as that of expert 0 is on "
      "a GPU, as float32, but is bfloat16. Use `device=\"cpu\"`.");

  const DecoderSpec plain = expert_specs(gpu_spec(), 24)[0].spec;
  RandomDecoder model(generic_kernels(), 1, {InputType::kBFloat16, DType::kFloat16, 8}, plain);
  const auto refused = [&](const auto& change, const CudaDecoderOptions& options) {
    const DecoderSpec spec = with_blocks(
        plain, [&](BlockSpec* block) { change(&std::get<ExpertsSpec>(block->feed_forward)); });
    try {
      const CudaDecoder decoder(spec, model.packed(), cuda::emulated_plugin(), nullptr, nullptr,
                                options);
      ADD_FAILURE() << "experts without kernels were accepted";
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused([](ExpertsSpec* own) { own->expert.activation = Activation::kXielu; }, {}),
            "load: a model on a GPU must not have xIELU activations, but this one has some. "
            "Use `device=\"cpu\"`.");
  const auto choose_many = [](ExpertsSpec* own) {
    own->experts = 1024;
    own->chosen = 64;
  };
  EXPECT_EQ(refused(choose_many, {.max_tokens = 65'535}),
            "load: the 65535 tokens of `prefill_chunk` + `max_sequences` must have at most 65535 "
            "runs of rows at experts on a GPU, but can have 66543. Use a smaller `prefill_chunk`.");
}

}  // namespace
}  // namespace sinkstream
