// CudaDecoder as a StepRunner, mostly on a lazy GPU, which exposes missing waits.
#include <gtest/gtest.h>

#include <optional>

#include "common/errors.h"
#include "sampling/sampler.h"

#include "cuda/lazy_gpu.h"
#include "cuda/sampling_loop.h"
#include "cuda_emulator/orders.h"
#include "heap/heap.h"

namespace sinkstream {
namespace {

using Wants = StepSpan::Wants;
using cuda::LazyGpu;

constexpr Window kWindow = {4, 9};

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

SamplingParams sampling(uint64_t seed) {
  SamplingParams params;
  params.temperature = 0.9;
  params.top_k = 30;
  params.top_p = 0.9;
  params.min_p = 0.02;
  params.seed = seed;
  return params;
}

SamplingParams min_p_sampling(uint64_t seed) {
  SamplingParams params;
  params.temperature = 1.2;
  params.min_p = 0.3;
  params.seed = seed;
  return params;
}

SamplingParams with_penalties(SamplingParams params) {
  params.repetition_penalty = 1.3;
  params.presence_penalty = 0.2;
  params.frequency_penalty = 0.4;
  return params;
}

SamplingParams with_bias(SamplingParams params, std::vector<TokenBias> bias) {
  params.logit_bias = std::move(bias);
  return params;
}

// The tokens of each request, sampled alone and without look-ahead.
std::vector<std::vector<SampledToken>> one_by_one(const std::vector<SamplingRequest>& requests,
                                                  const Window& window = kWindow,
                                                  const DecoderSpec& spec = gpu_spec()) {
  SamplingModel model(cuda::emulated_plugin(), 1, 4, spec);
  std::vector<std::vector<SampledToken>> sampled;
  for (const SamplingRequest& request : requests) {
    sampled.push_back(sample_one_by_one(model, window, request));
  }
  return sampled;
}

void expect_tokens(const SamplingLoop& loop,
                   const std::vector<std::vector<SampledToken>>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(same_tokens(loop.sampled(i), expected[i])) << "sequence " << i;
  }
}

StepSpan decode(SequenceCache* cache, int64_t seat, int64_t ahead = 0) {
  return {cache, ahead, nullptr, 1, seat, Wants::kToken};
}

StepSpan read(SequenceCache* cache, int64_t seat, const std::vector<int32_t>& tokens,
              Wants wants = Wants::kToken) {
  return {cache, 0, tokens.data(), std::ssize(tokens), seat, wants};
}

// A step without look-ahead; advances the caches.
StepResult step(CudaDecoder& gpu, const std::vector<StepSpan>& spans) {
  gpu.launch(spans);
  const StepResult sampled = gpu.await();
  for (const StepSpan& span : spans) span.cache->advance(span.count);
  return sampled;
}

// One step ahead, requests together draw the tokens that each draws alone. More steps than `graphs`
// are launches of a graph.
void expect_the_same_one_step_ahead(const std::vector<SamplingRequest>& requests,
                                    const DecoderSpec& spec, int64_t graphs) {
  const auto expected = one_by_one(requests, kWindow, spec);
  LazyGpu gpu;
  SamplingModel model(gpu.plugin(), std::ssize(requests), 4, spec);
  SamplingLoop loop(model, kWindow, requests);
  loop.run();
  expect_tokens(loop, expected);
  EXPECT_GT(gpu.take_counts().graphs, graphs);
}

TEST(CudaSampler, OneStepAheadItDrawsWhatForwardAndSamplingDrawFarPastTheWindow) {  // no tsan
  const int64_t vocab = gpu_spec().vocab_size;
  const std::vector<SamplingRequest> requests = {
      {with_bias(with_penalties(greedy()), {{3, 2}, {7, -INFINITY}}), {1, 2, 3, 4, 5}, 140},
      {sampling(5), {9}, 60},
      {with_penalties(min_p_sampling(6)), random_tokens(170, vocab, 1), 40, 72, 20},
      {greedy(), random_tokens(20, vocab, 2), 50, 6, 50}};
  expect_the_same_one_step_ahead(requests, gpu_spec(), 100);
}

TEST(CudaSampler, OneStepAheadItDrawsTheSameWhereLayersHaveTheirOwnWindows) {  // no tsan
  const DecoderSpec spec = with_windows(gpu_spec(), {7, 0});
  const std::vector<SamplingRequest> requests = {{greedy(), {1, 2, 3, 4, 5}, 130},
                                                 {sampling(5), {9}, 40},
                                                 {greedy(), random_tokens(100, 53, 1), 30, 72, 20}};
  expect_the_same_one_step_ahead(requests, spec, 90);
}

// Logits that are scaled and capped on the host, in forward, and on the GPU.
TEST(CudaSampler, OneStepAheadItDrawsTheSameFromScaledAndCappedLogits) {  // no tsan
  for (const auto& [name, spec] : special_specs(gpu_spec())) {
    if (spec.logit_scale == 1 && spec.logit_soft_cap == 0) continue;
    SCOPED_TRACE(name);
    const std::vector<SamplingRequest> requests = {
        {with_penalties(greedy()), {1, 2, 3, 4, 5}, 30},
        {sampling(5), {9}, 20},
        {greedy(), random_tokens(40, 53, 1), 10, 30, 10}};
    expect_the_same_one_step_ahead(requests, spec, 20);
  }
}

// The other extreme: a GPU that finishes each step at launch.
TEST(CudaSampler, DrawsTheSameOnAGpuThatIsNeverLate) {  // no tsan
  const std::vector<SamplingRequest> requests = {{sampling(5), {9}, 12},
                                                 {with_penalties(greedy()), {8, 7}, 9}};
  const auto expected = one_by_one(requests);
  SamplingModel model(cuda::emulated_plugin(), std::ssize(requests));
  SamplingLoop loop(model, kWindow, requests);
  loop.run();
  expect_tokens(loop, expected);
}

// By graph with batches of each bucket, directly with more sequences than the largest bucket, and
// without a graph because caches have more pages than planned.
TEST(CudaSampler, CompanyOfAnySizeAndTheWayAStepTakesChangeNoBit) {  // no tsan
  constexpr int64_t kMost = 70;
  std::vector<SamplingRequest> requests;
  for (int32_t i = 0; i < kMost; ++i) {
    SamplingParams params = i % 8 == 1 ? sampling(i) : greedy();
    if (i % 5 == 0) params = with_penalties(params);
    if (i % 7 == 0) params = with_bias(params, {{i % 53, -1}, {(i + 1) % 53, 3}});
    requests.push_back({params, {i % 53}, 3});
  }
  const auto alone = one_by_one(requests);
  for (const int64_t pages : {4, 1}) {
    LazyGpu gpu;
    SamplingModel model(gpu.plugin(), kMost, pages);
    for (const int64_t count : {1, 2, 3, 7, 12, 27, 64, 70}) {
      if (pages == 1 && count != 7 && count != 27) continue;
      SCOPED_TRACE(cat(count, " sequences, ", pages, " pages"));
      gpu.take_counts();
      const std::vector<SamplingRequest> some(requests.begin(), requests.begin() + count);
      SamplingLoop loop(model, kWindow, some);
      loop.run();
      expect_tokens(loop, {alone.begin(), alone.begin() + count});
      EXPECT_EQ(gpu.take_counts().graphs > 0, pages == 4 && count <= 64);
    }
  }
}

// A look-ahead token after each token of a text, all discarded.
TEST(CudaSampler, AThrownAwayTokenChangesNothingAfterwards) {  // no tsan
  for (const Window window : {Window{4, 9}, Window{3, 64}}) {
    LazyGpu gpu;
    SamplingModel model(gpu.plugin(), 1);
    GpuCaches ahead = model.make_caches(window), fresh = model.make_caches(window);
    const int64_t vocab = model.gpu.vocab();
    const auto text = random_tokens(140, vocab, 3), more = random_tokens(20, vocab, 4);
    model.gpu.begin_sampling(0, greedy(), window, {});
    for (const int32_t& token : text) {
      const StepSpan told = {&ahead[0], 0, &token, 1, 0, Wants::kToken};
      const StepSpan discarded = decode(&ahead[0], 0, 1);
      model.gpu.launch({&told, 1});
      model.gpu.launch({&discarded, 1});
      model.gpu.await();
      ahead[0].advance(1);
      model.gpu.await();
    }
    std::vector<float> expected(std::ssize(more) * vocab), found(expected.size());
    for (size_t t = 0; t < text.size(); t += 70) {
      const ForwardSpan span{&fresh[0], text.data() + t, 70, LogitsOf::kNone};
      forward_and_advance(model.gpu, {&span, 1}, nullptr);
    }
    const ForwardSpan to_fresh{&fresh[0], more.data(), std::ssize(more), LogitsOf::kAll};
    const ForwardSpan to_ahead{&ahead[0], more.data(), std::ssize(more), LogitsOf::kAll};
    forward_and_advance(model.gpu, {&to_fresh, 1}, expected.data());
    forward_and_advance(model.gpu, {&to_ahead, 1}, found.data());
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0)
        << "S " << window.sinks << " W " << window.window;
  }
}

TEST(CudaSampler, ASeatForgetsItsFormerSequence) {  // no tsan
  const std::vector<int32_t> prompt = {1, 2, 3};
  const SamplingRequest former = {with_bias(with_penalties(sampling(1)), {{5, 4}}), prompt, 15};
  const std::vector<SamplingRequest> next = {{with_penalties(greedy()), prompt, 12},
                                             {greedy(), prompt, 12},
                                             {with_bias(sampling(2), {{6, 1}}), prompt, 12}};
  const auto expected = one_by_one(next);
  LazyGpu gpu;
  SamplingModel model(gpu.plugin(), 1);
  for (size_t i = 0; i < next.size(); ++i) {
    SamplingLoop(model, kWindow, {former}).run();
    SamplingLoop loop(model, kWindow, {next[i]});
    loop.run();
    EXPECT_TRUE(same_tokens(loop.sampled(0), expected[i])) << "sequence " << i;
  }
}

// The host sampler gets the same tokens and forward's logits: penalties round alike, so the largest
// logit is the same.
TEST(CudaSampler, PenaltiesCountWhatTheHostsSamplerCounts) {  // no tsan
  for (const Window window : {Window{4, 9}, Window{20, 30}, Window{0, 5}}) {
    LazyGpu gpu;
    SamplingModel model(gpu.plugin(), 2);
    const int64_t vocab = model.gpu.vocab();
    GpuCaches caches = model.make_caches(window, 2);
    const auto seen = random_tokens(window.capacity() + 7, vocab, 5);
    const auto prompt = random_tokens(11, vocab, 6);
    // Tokens already in the cache: more than are live.
    for (size_t i = 0; i < 2; ++i) {
      const ForwardSpan span{&caches[i], seen.data(), std::ssize(seen), LogitsOf::kNone};
      forward_and_advance(model.gpu, {&span, 1}, nullptr);
    }
    const SamplingParams params = with_bias(with_penalties(greedy()), {{2, 1.5f}});
    Sampler sampler(params, window.sinks, window.window, kEndless);
    ThreadPool threads(1);
    SamplerScratch scratch(vocab);
    sampler.append(seen);
    sampler.append(prompt);
    model.gpu.begin_sampling(1, params, window, seen);

    std::vector<float> logits(vocab);
    std::vector<int32_t> next = prompt;
    for (int64_t i = 0; i < 40; ++i) {
      const ForwardSpan span{&caches[0], next.data(), std::ssize(next), LogitsOf::kLast};
      forward_and_advance(model.gpu, {&span, 1}, logits.data());
      const Sampled expected =
          sampler.sample(logits.data(), caches[0].length(), generic_kernels(), {&threads}, scratch);
      const StepSpan sampled = i == 0 ? read(&caches[1], 1, prompt) : decode(&caches[1], 1);
      const SampledToken found = step(model.gpu, {sampled}).tokens[0];
      ASSERT_EQ(found.token, expected.token) << "token " << i;
      ASSERT_NEAR(found.logprob, expected.logprob, 1e-5);
      next = {expected.token};
      sampler.append(next);
    }
  }
}

// A seat may be reused while a step of its former sequence is in flight, before the GPU has read
// that sequence's `seen`.
TEST(CudaSampler, WhatPenaltiesAreToldStaysUntilTheGpuHasReadIt) {  // no tsan
  const Window window{4, 20};
  const auto seen = random_tokens(20, gpu_spec().vocab_size, 7);
  SamplingParams params = greedy();
  params.presence_penalty = 100;
  LazyGpu gpu;
  SamplingModel model(gpu.plugin(), 1);
  GpuCaches caches = model.make_caches(window, 2);
  const std::vector<int32_t> prompt = {1};
  model.gpu.begin_sampling(0, params, window, seen);
  const SampledToken expected = step(model.gpu, {read(&caches[0], 0, prompt)}).tokens[0];
  // Not among `seen`: penalizing it, as `others` does, would change the sampled token.
  EXPECT_EQ(std::count(seen.begin(), seen.end(), expected.token), 0);
  const std::vector<int32_t> others(20, expected.token);
  model.gpu.begin_sampling(0, params, window, seen);
  const StepSpan span = read(&caches[1], 0, prompt);
  model.gpu.launch({&span, 1});
  model.gpu.begin_sampling(0, params, window, others);
  EXPECT_TRUE(same_token(model.gpu.await().tokens[0], expected));
}

// Logits for the host are forward's, next to rows that sample, in a model whose output map is
// split; they stay valid while the next step is launched.
TEST(CudaSampler, LogitsThatTheHostWantsAreForwards) {  // no tsan
  DecoderSpec spec = gpu_spec();
  spec.hidden_size = 456;
  LazyGpu gpu;
  SamplingModel model(gpu.plugin(), 4, 4, spec);
  ASSERT_GT(cuda::linear_splits(spec.vocab_size, spec.hidden_size), 1);
  const int64_t vocab = spec.vocab_size;
  GpuCaches alone = model.make_caches(kWindow, 4), together = model.make_caches(kWindow, 4);
  const std::vector<std::vector<int32_t>> prompts = {{1, 2}, {3}, {4, 5, 6}, {7}};
  std::vector<std::vector<float>> expected;  // of all tokens of each prompt
  for (size_t i = 0; i < 4; ++i) {
    const ForwardSpan span{&alone[i], prompts[i].data(), std::ssize(prompts[i]), LogitsOf::kAll};
    expected.emplace_back(prompts[i].size() * vocab);
    forward_and_advance(model.gpu, {&span, 1}, expected.back().data());
    model.gpu.begin_sampling(static_cast<int64_t>(i), greedy(), kWindow, {});
  }
  const std::vector<StepSpan> spans = {read(&together[0], 0, prompts[0], Wants::kLogits),
                                       read(&together[1], 1, prompts[1]),
                                       read(&together[2], 2, prompts[2], Wants::kAllLogits),
                                       read(&together[3], 3, prompts[3], Wants::kNothing)};
  // The last `rows` rows of a prompt's.
  const auto expect_rows = [&](const float* found, size_t i, int64_t rows) {
    const float* const end = expected[i].data() + expected[i].size();
    EXPECT_EQ(std::memcmp(found, end - rows * vocab, rows * vocab * sizeof(float)), 0) << i;
  };
  const auto largest = [&](size_t i) {
    const float* row = expected[i].data() + expected[i].size() - vocab;
    return static_cast<int32_t>(std::max_element(row, row + vocab) - row);
  };
  model.gpu.launch(spans);
  EXPECT_THROW(model.gpu.launch(spans), InternalError) << "two steps in flight want logits";
  const StepSpan next = decode(&together[1], 1, 1);
  model.gpu.launch({&next, 1});
  const StepResult first = model.gpu.await();
  ASSERT_EQ(first.tokens.size(), 1u);
  ASSERT_EQ(first.runs.size(), 1u);
  EXPECT_EQ(first.runs[0], 1);
  EXPECT_EQ(first.tokens[0].token, largest(1));
  expect_rows(first.logits, 0, 1);
  expect_rows(first.logits + vocab, 2, 3);
  for (const StepSpan& span : spans) span.cache->advance(span.count);
  const std::vector<int32_t> sampled = {largest(0)};
  const StepSpan told = read(&together[0], 0, sampled, Wants::kLogits);
  model.gpu.launch({&told, 1});
  model.gpu.await();
  const StepResult last = model.gpu.await();
  const ForwardSpan again{&alone[0], sampled.data(), 1, LogitsOf::kLast};
  std::vector<float> found(vocab);
  forward_and_advance(model.gpu, {&again, 1}, found.data());
  EXPECT_EQ(std::memcmp(last.logits, found.data(), vocab * sizeof(float)), 0);
}

// Forward computes logits in slices of kLogitRows rows.
TEST(CudaSampler, ForwardGivesTheLogitsOfMoreRowsThanAreComputedTogether) {  // no tsan
  LazyGpu gpu;
  SamplingModel model(gpu.plugin(), 1);
  const int64_t vocab = model.gpu.vocab();
  GpuCaches caches = model.make_caches({4, 30}, 2);
  const auto text = random_tokens(90, vocab, 9);
  std::vector<float> together(90 * vocab), alone(90 * vocab);
  const ForwardSpan all{&caches[0], text.data(), 90, LogitsOf::kAll};
  forward_and_advance(model.gpu, {&all, 1}, together.data());
  for (int64_t t = 0; t < 90; ++t) {
    const ForwardSpan one{&caches[1], text.data() + t, 1, LogitsOf::kAll};
    forward_and_advance(model.gpu, {&one, 1}, alone.data() + t * vocab);
  }
  EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0);
}

TEST(CudaSampler, SaysThatLogitsAreNotFiniteAndTheOthersGoOn) {  // no tsan
  const SamplingRequest other = {greedy(), {1, 2, 3}, 4};
  const auto expected = one_by_one({other})[0];
  LazyGpu gpu;
  SamplingModel model(gpu.plugin(), 2);
  GpuCaches caches = model.make_caches(kWindow, 2);
  for (const int64_t seat : {0, 1}) {
    model.gpu.begin_sampling(seat, with_penalties(greedy()), kWindow, {});
  }
  model.gpu.begin_sampling(0, greedy(), kWindow, {});
  std::vector<SampledToken> found;
  step(model.gpu, {read(&caches[0], 0, {1, 2}, Wants::kNothing),
                   read(&caches[1], 1, {4, 5}, Wants::kNothing)});
  const int32_t page = caches[1].page_ids(caches[1].group(0))[0];
  PagePool& pool = caches.memory.pages[0];
  pool.memory().poison(pool.page(page), 2);  // part of a sink's key
  found.push_back(step(model.gpu, {read(&caches[0], 0, {3}), read(&caches[1], 1, {6})}).tokens[0]);
  for (int64_t i = 1; i < 4; ++i) {
    // Later steps of the failed sequence are harmless, too.
    const StepResult sampled = step(model.gpu, {decode(&caches[0], 0), decode(&caches[1], 1)});
    found.push_back(sampled.tokens[0]);
    EXPECT_FALSE(sampled.tokens[1].is_finite);
    EXPECT_LT(sampled.tokens[1].token, 0);
  }
  EXPECT_TRUE(same_tokens(found, expected));
}

// By graph if the list fits in its block, and directly if not.
TEST(CudaSampler, SaysThatItsBiasForbidsEveryToken) {  // no tsan
  std::vector<TokenBias> all;
  for (int32_t id = 0; id < gpu_spec().vocab_size; ++id) all.push_back({id, -INFINITY});
  for (const size_t count : {1, 2}) {
    LazyGpu gpu;
    SamplingModel model(gpu.plugin(), 2);
    GpuCaches caches = model.make_caches(kWindow, 2);
    model.gpu.begin_sampling(0, with_bias(sampling(1), all), kWindow, {});
    model.gpu.begin_sampling(1, sampling(1), kWindow, {});
    gpu.take_counts();
    const std::vector<int32_t> prompt = {1};
    std::vector<StepSpan> spans = {read(&caches[0], 0, prompt), read(&caches[1], 1, prompt)};
    spans.resize(count);
    const StepResult sampled = step(model.gpu, spans);
    EXPECT_LT(sampled.tokens[0].token, 0);
    EXPECT_TRUE(sampled.tokens[0].is_finite);
    if (count == 2) {
      EXPECT_GE(sampled.tokens[1].token, 0);
    }
    EXPECT_EQ(gpu.take_counts().graphs, count == 2 ? 1 : 0);
  }
}

TEST(CudaSampler, HasTwoGraphsForEachBucketThatItsSequencesNeed) {  // no tsan
  for (const auto& [sequences, graphs] : {std::pair{1, 2}, {2, 4}, {3, 6}, {64, 14}, {65, 14}}) {
    const SamplingModel model(cuda::emulated_plugin(), sequences);
    EXPECT_EQ(model.gpu.graphs(), graphs) << sequences << " sequences";
  }
}

// Two sequences that decode one step ahead, with every sampling feature.
struct Steady {
  explicit Steady(LazyGpu& gpu) : model(gpu.plugin(), 2), caches(model.make_caches(kWindow, 2)) {
    const SamplingParams params = with_bias(with_penalties(sampling(3)), {{1, 1}});
    for (const int64_t seat : {0, 1}) model.gpu.begin_sampling(seat, params, kWindow, {});
    step(model.gpu, {read(&caches[0], 0, {1, 2}), read(&caches[1], 1, {3})});
    launch(0);
  }
  void launch(int64_t ahead) {
    const StepSpan spans[] = {decode(&caches[0], 0, ahead), decode(&caches[1], 1, ahead)};
    model.gpu.launch(spans);
  }
  void go_on() {
    launch(1);
    model.gpu.await();
    for (const auto& cache : caches.all) cache->advance(1);
  }

  SamplingModel model;
  GpuCaches caches;
};

TEST(CudaSampler, ASteadyStepIsOneGraphOneEventAndOneWait) {  // no tsan
  LazyGpu gpu;
  Steady steady(gpu);
  for (int i = 0; i < 4; ++i) steady.go_on();
  for (int i = 0; i < 10; ++i) {
    gpu.take_counts();
    steady.launch(1);
    EXPECT_EQ(gpu.take_counts(), (cuda::CallCounts{.graphs = 1, .records = 1, .enqueued = 1}));
    steady.model.gpu.await();
    EXPECT_EQ(gpu.take_counts(), (cuda::CallCounts{.awaits = 1}));
    for (const auto& cache : steady.caches.all) cache->advance(1);
  }
  steady.model.gpu.await();
}

// Excludes the emulated GPU's own work.
TEST(CudaSampler, ASteadyStepTakesNothingFromTheHeap) {  // no tsan
  LazyGpu gpu;
  Steady steady(gpu);
  for (int i = 0; i < 3; ++i) steady.go_on();
  gpu.ignore_graphs();
  for (int i = 0; i < 3; ++i) steady.launch(1), steady.model.gpu.await();
  const int64_t before = allocations();
  for (int i = 0; i < 100; ++i) {
    steady.launch(1);
    steady.model.gpu.await();
  }
  EXPECT_EQ(allocations(), before);
  steady.model.gpu.await();
}

TEST(CudaSampler, SaysThatALaunchFailed) {  // no tsan
  SamplingModel model(cuda::emulated_plugin(), 2);
  GpuCaches caches = model.make_caches(kWindow);
  model.gpu.begin_sampling(0, greedy(), kWindow, {});
  const std::vector<int32_t> one = {1}, two = {1, 2};
  const auto message_of = [&](const std::vector<int32_t>& tokens) -> std::string {
    cuda::emulator::fail_next_launch(2);
    try {
      step(model.gpu, {read(&caches[0], 0, tokens)});
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "no error was reported";
  };
  EXPECT_EQ(message_of(two), "cuda: embedding failed: an emulated failure.");
  EXPECT_EQ(message_of(one), "cuda: a step failed: an emulated failure.");
  EXPECT_EQ(caches[0].length(), 0);
}

// A list longer than planned needs memory, which the GPU may not have.
TEST(CudaSampler, ABiasWithoutMemoryFailsOnlyItsOwnRequest) {  // no tsan
  static bool is_full;
  is_full = false;
  cuda::Plugin plugin = cuda::emulated_plugin();
  plugin.runtime.new_memory = [](int64_t bytes, std::byte** memory) -> cuda::Status {
    return is_full ? 2 : cuda::emulated_plugin().runtime.new_memory(bytes, memory);
  };
  DecoderSpec spec = gpu_spec();
  spec.vocab_size = 256;
  SamplingModel model(plugin, 2, 4, spec);
  GpuCaches caches = model.make_caches(kWindow);
  const std::vector<int32_t> prompt = {1, 2};
  const auto draw = [&] {
    model.gpu.begin_sampling(0, greedy(), kWindow, {});
    model.gpu.launch(std::vector{read(&caches[0], 0, prompt)});
    return model.gpu.await().tokens[0].token;
  };
  const int32_t expected = draw();
  std::vector<TokenBias> bias;
  for (int32_t id = 0; id < 250; ++id) bias.push_back({id, -1});
  is_full = true;
  EXPECT_THROW(model.gpu.begin_sampling(1, with_bias(greedy(), bias), kWindow, {}), CapacityError);
  EXPECT_EQ(draw(), expected);
  is_full = false;
  EXPECT_NO_THROW(model.gpu.begin_sampling(1, with_bias(greedy(), bias), kWindow, {}));
  EXPECT_EQ(draw(), expected);
}

TEST(CudaSampler, RefusesAThirdStepAndAForwardWhileOneIsInFlight) {  // no tsan
  LazyGpu gpu;
  SamplingModel model(gpu.plugin(), 1);
  GpuCaches caches = model.make_caches(kWindow);
  model.gpu.begin_sampling(0, greedy(), kWindow, {});
  const std::vector<int32_t> prompt = {1};
  const StepSpan told = read(&caches[0], 0, prompt);
  const StepSpan ahead = decode(&caches[0], 0, 1), further = decode(&caches[0], 0, 2);
  model.gpu.launch({&told, 1});
  const ForwardSpan span{&caches[0], prompt.data(), 1, LogitsOf::kNone};
  EXPECT_THROW(forward_and_advance(model.gpu, {&span, 1}, nullptr), InternalError);
  EXPECT_THROW(model.gpu.evict_range(&caches[0], 4, 5), InternalError);
  model.gpu.launch({&ahead, 1});
  EXPECT_THROW(model.gpu.launch({&further, 1}), InternalError);
  model.gpu.await();
  model.gpu.await();
  EXPECT_THROW(model.gpu.await(), InternalError);
}

TEST(CudaSampler, RefusesAnUnknownSeatAndTwoSampledTokensAtOnce) {  // no tsan
  SamplingModel model(cuda::emulated_plugin(), 2);
  GpuCaches caches = model.make_caches(kWindow);
  const std::vector<int32_t> prompt = {1};
  for (const int64_t seat : {-1, 2}) {
    EXPECT_THROW(model.gpu.begin_sampling(seat, greedy(), kWindow, {}), InternalError);
    const StepSpan span = read(&caches[0], seat, prompt);
    EXPECT_THROW(model.gpu.launch({&span, 1}), InternalError);
  }
  StepSpan two = decode(&caches[0], 0);
  two.count = 2;
  EXPECT_THROW(model.gpu.launch({&two, 1}), InternalError);
  two.drafts = 1;
  EXPECT_THROW(model.gpu.launch({&two, 1}), InternalError) << "it guesses nothing";
}

}  // namespace
}  // namespace sinkstream
