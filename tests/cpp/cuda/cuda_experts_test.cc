// Decoders with experts on a GPU, against the definition, and against themselves in other chunks,
// other company and other steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "cuda/emulated_gpu.h"
#include "cuda/sampling_loop.h"
#include "cuda_emulator/orders.h"
#include "kernels/tolerance.h"
#include "lanes.h"
#include "model/literal_decoder.h"

namespace sinkstream {
namespace {

constexpr int64_t kSize = 24, kSharedSize = 48;  // of experts

// The rules of each kind of router, and blocks as families with experts have them.
std::vector<NamedSpec> gpu_expert_specs() {
  std::vector<NamedSpec> specs = expert_specs(gpu_spec(), kSize, kSharedSize);
  DecoderSpec trained = with_blocks(specs[3].spec, [](BlockSpec* block) {
    auto& own = std::get<ExpertsSpec>(block->feed_forward);
    own.expert.activation = Activation::kClampedSwiglu;
    block->attention().sink_logits = true;
    block->attention().qkv_bias = block->attention().output_bias = true;
  });
  specs.push_back(
      {"biases, learned sinks, clamped SwiGLU, windows", with_windows(trained, {2, 0})});
  for (const bool has_second_norm : {true, false}) {
    const DecoderSpec parallel = with_blocks(specs[1].spec, [&](BlockSpec* block) {
      block->norm = {NormKind::kLayer, 1e-5f, has_second_norm};
      block->parallel = true;
      block->mlp_norm = has_second_norm;
    });
    specs.push_back({has_second_norm ? "parallel with two norms" : "parallel with one", parallel});
  }
  return specs;
}

// The logits of all tokens, in chunks of `chunk`.
std::vector<float> logits_of(WeightedModel& model, SequenceCache* cache,
                             const std::vector<int32_t>& tokens, int64_t chunk) {
  const int64_t count = std::ssize(tokens), vocab = model.vocab();
  std::vector<float> found(count * vocab, NAN);
  for (int64_t t = 0; t < count; t += chunk) {
    const ForwardSpan span{cache, tokens.data() + t, std::min(chunk, count - t), LogitsOf::kAll};
    forward_and_advance(model, {&span, 1}, found.data() + t * vocab);
  }
  return found;
}

// One model twice: on the CPU and on a GPU. Both round the inputs of linear maps to bfloat16.
struct Twins {
  explicit Twins(const DecoderSpec& spec, DType cache_type = DType::kFloat16)
      : processor(generic_kernels(), 1, {InputType::kBFloat16, cache_type, kMostTokens}, spec),
        gpu(spec, processor.packed(), cuda::emulated_plugin(), nullptr, nullptr,
            {cache_type, kMostTokens, 8, 4}) {}

  GpuCaches caches(const Window& window, int64_t count = 1) {
    return {cuda::emulated_plugin(), gpu, processor.spec.cache_layers(), window, count};
  }
  std::vector<float> on_the_processor(const Window& window, const std::vector<int32_t>& tokens) {
    const CacheLayers layers = processor.spec.cache_layers();
    OwnedPools memory = poisoned_pools(*processor.decoder, layers,
                                       SequenceCache::memory_needed(window, layers, kEndless));
    SequenceCache cache(memory.pools(), window, layers, kEndless);
    return logits_of(*processor.decoder, &cache, tokens, kMostTokens);
  }

  static constexpr int64_t kMostTokens = 160;
  RandomDecoder processor;
  CudaDecoder gpu;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Whether a router decides the same if its logits change by `distance`, or one of them by twice as
// much. If weights change more than softmax does, SparseMixer has come to its border.
bool is_clear(const ExpertsSpec& spec, const float* choice_bias,
              const LiteralDecoder::Routed& routed, float distance) {
  const auto weights_of = [&](const std::vector<float>& logits) {
    std::vector<int32_t> ids(static_cast<size_t>(spec.chosen));
    std::vector<float> weights(ids.size()), of_each(static_cast<size_t>(spec.experts));
    ThreadPool pool(1);
    reference_kernels().route({.logits = logits.data(),
                               .choice_bias = choice_bias,
                               .rows = 1,
                               .rules = spec,
                               .ids = ids.data(),
                               .weights = weights.data()},
                              {&pool});
    for (size_t r = 0; r < ids.size(); ++r) of_each[static_cast<size_t>(ids[r])] = weights[r];
    return of_each;  // 0: not chosen
  };
  const std::vector<float> before = weights_of(routed.logits);
  const float most = 0.1f * *std::ranges::max_element(before);
  const auto stays = [&](const auto& change_of) {
    std::vector<float> logits = routed.logits;
    for (int64_t e = 0; e < spec.experts; ++e) logits[static_cast<size_t>(e)] += change_of(e);
    const std::vector<float> after = weights_of(logits);
    for (size_t e = 0; e < after.size(); ++e) {
      if ((after[e] == 0) != (before[e] == 0) || std::abs(after[e] - before[e]) > most) {
        return false;
      }
    }
    return true;
  };
  // The chosen fall and the others rise; then the groups that the chosen are in.
  for (const int64_t together : {int64_t{1}, spec.experts / spec.groups}) {
    const auto change_of = [&](int64_t e) {
      const bool falls = std::ranges::any_of(
          routed.ids, [&](int32_t chosen) { return chosen / together == e / together; });
      return falls ? -distance : distance;
    };
    if (!stays(change_of)) return false;
  }
  for (int64_t i = 0; i < 2 * spec.experts; ++i) {
    const float change = i % 2 == 0 ? 2 * distance : -2 * distance;
    if (!stays([&](int64_t e) { return e == i / 2 ? change : 0; })) return false;
  }
  return true;
}

// The definition's logits of a text, and which tokens they can be compared for: no router was near
// a tie, for the token itself or, in earlier layers, for one that it sees.
struct Definition {
  Definition(const RandomWeights& model, const Window& window, const std::vector<int32_t>& tokens) {
    const DecoderSpec& spec = model.spec;
    std::map<int64_t, LiteralDecoder::Seen> seen_of;  // by a layer's own window
    std::vector<const LiteralDecoder::Seen*> seen;
    for (int64_t layer = 0; layer < spec.layers(); ++layer) {
      const int64_t own = spec.block(layer).attention().window;
      LiteralDecoder::Seen& of_window = seen_of[own];
      if (of_window.empty()) {
        LiveTokens live(own > 0 ? 0 : window.sinks, own > 0 ? own : window.window);
        for (int64_t t = 0; t < std::ssize(tokens); ++t) of_window.push_back(live.add(t));
      }
      seen.push_back(&of_window);
    }
    const LiteralDecoder literal(model);
    logits = literal.logits(tokens, seen);
    is_sure.assign(tokens.size(), true);
    for (int64_t layer = 0; layer < spec.layers(); ++layer) {
      const std::vector<bool> before = is_sure;
      const ExpertsSpec* const experts = spec.block(layer).experts();
      const std::string bias = "layers." + std::to_string(layer) + ".choice_bias";
      for (size_t t = 0; t < tokens.size(); ++t) {
        for (const int64_t other : (*seen[layer])[t]) {
          if (!before[static_cast<size_t>(other)]) is_sure[t] = false;
        }
        if (experts == nullptr) continue;
        const float* const choice_bias =
            experts->choice_bias ? model.weights.at(bias).data() : nullptr;
        const LiteralDecoder::Routed& routed = literal.routed()[static_cast<size_t>(layer)][t];
        if (is_sure[t]) is_sure[t] = is_clear(*experts, choice_bias, routed, 0.04f);
      }
    }
  }

  // The largest error of tokens that can be compared, relative to the largest logit.
  double worst(const std::vector<float>& found) const {
    double largest = 0, error = 0;
    for (const auto& row : logits) {
      for (const double x : row) largest = std::max(largest, std::abs(x));
    }
    const int64_t vocab = std::ssize(logits.front());
    for (size_t t = 0; t < logits.size(); ++t) {
      if (!is_sure[t]) continue;
      const std::vector<float> row(logits[t].begin(), logits[t].end());
      error = std::max(error, worst_error(&found[t * vocab], row.data(), vocab, largest));
    }
    return error;
  }

  std::vector<LiteralDecoder::Row> logits;
  std::vector<bool> is_sure;
};

class CudaExperts : public testing::TestWithParam<std::pair<int64_t, NamedSpec>> {};

// Few tokens see each other, and none sees a sink: one near a tie would leave few to compare.
TEST_P(CudaExperts, AreAsCloseToTheDefinitionAsTheProcessorFarPastTheWindow) {  // no tsan
  const NamedSpec& named = GetParam().second;
  Twins twins(named.spec);
  const auto tokens = random_tokens(150, twins.gpu.vocab(), 1);
  const Window window = {0, 3};
  const Definition expected(twins.processor, window, tokens);
  GpuCaches caches = twins.caches(window);
  const double found = expected.worst(logits_of(twins.gpu, &caches[0], tokens, 60));
  const double on_the_processor = expected.worst(twins.on_the_processor(window, tokens));
  EXPECT_LE(found, 1.5 * on_the_processor) << named.name;
  EXPECT_LE(on_the_processor, 2 * tolerance_of(DType::kBFloat16)) << named.name;
  EXPECT_GE(std::ranges::count(expected.is_sure, true), 30)
      << named.name << ": few of 150 tokens can be compared";
}

TEST_P(CudaExperts, ChunkSizeChangesNoBit) {  // no tsan
  const auto& [index, named] = GetParam();
  Twins twins(named.spec, DType::kInt8);
  const auto tokens = random_tokens(100, twins.gpu.vocab(), 2);
  const Window window = {3, 20};
  GpuCaches whole = twins.caches(window);
  const auto expected = logits_of(twins.gpu, &whole[0], tokens, 100);
  for (const float value : expected) ASSERT_TRUE(std::isfinite(value)) << named.name;
  // Before single tokens, the window is filled at once.
  for (const auto& [i, cut_at] : indexed({std::pair{1, 70}, {9, 0}, {66, 0}})) {
    if (!runs_case(3, {index, i})) continue;
    const auto [chunk, together] = cut_at;
    const auto middle = tokens.begin() + together;
    GpuCaches cut = twins.caches(window);
    auto found = logits_of(twins.gpu, &cut[0], {tokens.begin(), middle}, 70);
    const auto rest = logits_of(twins.gpu, &cut[0], {middle, tokens.end()}, chunk);
    found.insert(found.end(), rest.begin(), rest.end());
    EXPECT_TRUE(same_bits(expected, found)) << named.name << ", chunk " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, CudaExperts, testing::ValuesIn(indexed(gpu_expert_specs())),
                         [](const auto& info) { return cat("Spec", info.param.first); });

TEST(CudaExpertsTogether, NeitherCompanyNorOrderOfThreadsChangesABit) {
  Twins twins(gpu_expert_specs()[2].spec);
  constexpr int64_t kSequences = 4;
  const Window window = {4, 20};
  cuda::emulator::in_orders_of_run([&](const cuda::emulator::Order& order) {
    GpuCaches together = twins.caches(window, kSequences), alone = twins.caches(window, kSequences);
    std::mt19937 random(3);
    for (int step = 0; step < 6; ++step) {
      std::vector<std::vector<int32_t>> tokens(kSequences);
      std::vector<ForwardSpan> spans;
      std::vector<float> expected;
      for (int64_t i = 0; i < kSequences; ++i) {
        const int64_t count = step == 0 || random() % 4 == 0 ? 1 + random() % 38 : 1;
        tokens[i] = random_tokens(count, twins.gpu.vocab(), random());
        spans.push_back({&together[i], tokens[i].data(), count, LogitsOf::kAll});
        const auto all = logits_of(twins.gpu, &alone[i], tokens[i], count);
        expected.insert(expected.end(), all.begin(), all.end());
      }
      std::vector<float> logits(expected.size(), NAN);
      forward_and_advance(twins.gpu, spans, logits.data());
      ASSERT_TRUE(same_bits(logits, expected)) << order.name << ", step " << step;
    }
  });
}

// The router reads two rows for each token, and so does the memory for its sorted inputs.
TEST(CudaExpertsTogether, ARouterWithColumnsInAnOrderOfTheirOwnHasRoomForItsInputs) {
  constexpr int64_t kRows = 160;  // of a step at most: the router's are in several blocks
  const DecoderSpec spec = gpu_expert_specs()[0].spec;
  RandomDecoder processor(generic_kernels(), 1, {InputType::kBFloat16, DType::kFloat16, 8}, spec);
  std::vector<int32_t> order(static_cast<size_t>(spec.hidden_size));
  for (int64_t i = 0; i < spec.hidden_size; ++i) {
    order[static_cast<size_t>(i)] = static_cast<int32_t>(spec.hidden_size - 1 - i);
  }
  DecoderWeights weights = processor.packed();
  for (LayerWeights& layer : weights.layers) layer.experts.router.order = order.data();
  CudaDecoder gpu(spec, weights, cuda::emulated_plugin(), nullptr, nullptr,
                  {DType::kFloat16, kRows, 1, 4});
  GpuCaches caches(cuda::emulated_plugin(), gpu, spec.cache_layers(), {4, 60}, 2);
  const auto tokens = random_tokens(kRows, gpu.vocab(), 4);
  const auto together = logits_of(gpu, &caches[0], tokens, kRows);
  for (const float value : together) ASSERT_TRUE(std::isfinite(value));
  EXPECT_TRUE(same_bits(together, logits_of(gpu, &caches[1], tokens, 40)));
}

// Captured steps, of which that for four rows has an idle one.
TEST(CudaExpertsTogether, AStepAheadOfTheHostSamplesWhatForwardDoes) {
  SamplingModel model(cuda::emulated_plugin(), 4, 4, gpu_expert_specs()[1].spec);
  ASSERT_GT(model.gpu.graphs(), 0);
  const Window window = {4, 9};
  std::vector<SamplingRequest> requests;
  for (uint32_t i = 0; i < 3; ++i) {
    SamplingParams params;
    params.temperature = i == 0 ? 0 : 0.9;
    params.seed = i;
    requests.push_back(
        {.params = params, .prompt = random_tokens(3 + 20 * i, model.gpu.vocab(), i), .count = 25});
  }
  SamplingLoop loop(model, window, requests);
  loop.run();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(same_tokens(loop.sampled(i), sample_one_by_one(model, window, requests[i])))
        << "request " << i;
  }
}

}  // namespace
}  // namespace sinkstream
