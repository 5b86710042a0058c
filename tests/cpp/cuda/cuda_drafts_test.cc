// Guesses that a GPU verifies: Note [Waves] of kernels/cuda/sampling/sampling.h. Whatever is
// guessed, each seat samples the tokens that it samples without guesses, bit for bit.
#include <gtest/gtest.h>

#include <random>

#include "cuda/lazy_gpu.h"
#include "cuda/sampling_loop.h"

namespace sinkstream {
namespace {

constexpr int64_t kMostDrafts = 30;  // of a span
constexpr int64_t kMostRows = 93;    // of three such spans: more than kLogitRows

SamplingParams params_of(double temperature, bool penalized, uint64_t seed = 0) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = seed;
  if (temperature > 0) params.top_p = 0.95;
  if (temperature > 1) params.min_p = 0.01;
  if (!penalized) return params;
  params.repetition_penalty = 1.3;
  params.presence_penalty = 0.2;
  params.frequency_penalty = 0.4;
  params.logit_bias = {{3, 2}, {7, -INFINITY}};
  return params;
}

// The tokens of each request without guesses, alone.
std::vector<std::vector<SampledToken>> without_guesses(const std::vector<SamplingRequest>& requests,
                                                       const Window& window,
                                                       const DecoderSpec& spec) {
  SamplingModel model(cuda::emulated_plugin(), 1, 4, spec);
  std::vector<std::vector<SampledToken>> sampled;
  for (const SamplingRequest& request : requests) {
    SamplingLoop loop(model, window, {request});
    loop.run();
    sampled.push_back(loop.sampled(0));
  }
  return sampled;
}

// Samples requests together, with up to `drafts` guesses each. The guesses are the tokens that are
// known to follow, some of them replaced; some steps of a sequence have none. At the end of a block
// of 64 the first guess is wrong, and the last ones would begin the next block.
struct GuessingLoop {
  GuessingLoop(const cuda::Plugin& plugin, const std::vector<SamplingRequest>& of,
               const Window& window, const DecoderSpec& spec, int64_t drafts)
      : requests(of),
        most_drafts(drafts),
        model(plugin, std::ssize(of), 4, spec, kMostRows),
        caches(model.make_caches(window, std::ssize(of))),
        sampled(of.size()) {}

  void run(const std::vector<std::vector<SampledToken>>& known, uint32_t seed) {
    random.seed(seed);
    for (size_t i = 0; i < requests.size(); ++i) read_prompt(i);
    while (step(known)) {
    }
  }

  void read_prompt(size_t i) {
    const SamplingRequest& request = requests[i];
    const auto seat = static_cast<int64_t>(i);
    model.gpu.begin_sampling(seat, request.params, caches[i].window(), {});
    const StepSpan span = {&caches[i],
                           0,
                           request.prompt.data(),
                           std::ssize(request.prompt),
                           seat,
                           StepSpan::Wants::kToken};
    model.gpu.launch({&span, 1});
    sampled[i].push_back(model.gpu.await().tokens.front());
    caches[i].advance(span.count);
  }

  // Whether any request has tokens left.
  bool step(const std::vector<std::vector<SampledToken>>& known) {
    std::vector<std::vector<int32_t>> tokens(requests.size());
    std::vector<StepSpan> spans;
    std::vector<size_t> owners;
    for (size_t i = 0; i < requests.size(); ++i) {
      const int64_t left = requests[i].count - std::ssize(sampled[i]);
      if (left == 0) continue;
      const Window& window = caches[i].window();
      const int64_t next_row = (caches[i].length() + kPageRows - window.sinks) % kPageRows;
      const bool ends_block = next_row >= kPageRows - 6;
      int64_t most = static_cast<int64_t>(random() % most_drafts) + 1;
      if (random() % 4 == 0) most = 0;
      if (ends_block) most = most_drafts;
      tokens[i] = {sampled[i].back().token};
      for (int64_t k = 0; k < std::min(most, left - 1); ++k) {
        const int32_t next = known[i][sampled[i].size() + static_cast<size_t>(k)].token;
        const bool is_right = ends_block ? k > 0 : random() % 9 != 0;
        tokens[i].push_back(is_right ? next : static_cast<int32_t>((next + 1) % model.gpu.vocab()));
      }
      const int64_t count = std::ssize(tokens[i]);
      spans.push_back({&caches[i], 0, count > 1 ? tokens[i].data() : nullptr, count,
                       static_cast<int64_t>(i), StepSpan::Wants::kToken, count - 1});
      owners.push_back(i);
    }
    if (spans.empty()) return false;
    model.gpu.launch(spans);
    const StepResult result = model.gpu.await();
    auto token = result.tokens.begin();
    for (size_t s = 0; s < spans.size(); ++s) {
      const int32_t run = result.runs[s];
      keep(*spans[s].cache, spans[s].count, run);
      sampled[owners[s]].insert(sampled[owners[s]].end(), token, token + run);
      token += run;
    }
    EXPECT_EQ(token, result.tokens.end());
    return true;
  }

  void keep(SequenceCache& cache, int64_t count, int32_t run) {
    ASSERT_GE(run, 1);
    ASSERT_LE(run, count);
    cache.add_in_flight(count);
    cache.commit_in_flight(run);
    if (run < count) cache.drop_in_flight();
    kept += run - 1;
    dropped += count - run;
  }

  const std::vector<SamplingRequest> requests;
  const int64_t most_drafts;
  SamplingModel model;
  GpuCaches caches;
  std::vector<std::vector<SampledToken>> sampled;
  std::mt19937 random;
  int64_t kept = 0, dropped = 0;  // guesses
};

void expect_the_same(const Window& window, const DecoderSpec& spec, int64_t count, int64_t drafts) {
  const int64_t vocab = spec.vocab_size;
  const std::vector<SamplingRequest> requests = {
      {params_of(0, true), {1, 2, 3, 4, 5}, count},
      {params_of(0.8, false, 5), {9}, count / 2},
      {params_of(1.5, true, 6), random_tokens(70, vocab, 1), count}};
  const auto known = without_guesses(requests, window, spec);
  cuda::LazyGpu gpu;
  GuessingLoop loop(gpu.plugin(), requests, window, spec, drafts);
  loop.run(known, 1);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(same_tokens(loop.sampled[i], known[i])) << "sequence " << i;
  }
  EXPECT_GT(loop.kept, count / 4);
  EXPECT_GT(loop.dropped, count / 4);
}

class CudaDraftsIn : public testing::TestWithParam<Window> {};

// The third sequence ends its second block, when it still sees a part of the first.
TEST_P(CudaDraftsIn, SampleWhatIsSampledWithoutThemFarPastTheWindow) {  // no tsan
  expect_the_same(GetParam(), gpu_spec(), 75, 8);
}

INSTANTIATE_TEST_SUITE_P(Windows, CudaDraftsIn,
                         testing::Values(Window{0, 1}, Window{4, 9}, Window{0, 64}, Window{66, 5}),
                         [](const auto& info) {
                           return cat("sinks_", info.param.sinks, "_window_", info.param.window);
                         });

TEST(CudaDrafts, SampleTheSameWhereLayersHaveTheirOwnWindows) {  // no tsan
  expect_the_same({3, 70}, with_windows(gpu_spec(), {32, 0}), 75, 8);
}

TEST(CudaDrafts, MayBeMoreThanTheRowsWhoseLogitsAreComputedTogether) {  // no tsan
  expect_the_same({4, 60}, gpu_spec(), 32, kMostDrafts);
}

// A few tokens, for the thread sanitizer.
TEST(CudaDrafts, AreSampledWithoutRaces) { expect_the_same({4, 9}, gpu_spec(), 12, 6); }

// Only the row before tells whether a row is skipped, so a guess may name the token that an earlier
// row has sampled.
TEST(CudaDrafts, NothingIsSampledAfterAWrongGuessEvenIfALaterOneIsRight) {
  const SamplingRequest request = {params_of(0.8, true, 3), {1, 2, 3}, 12};
  const auto known = without_guesses({request}, {4, 60}, gpu_spec());
  const auto& tokens = known.front();
  GuessingLoop loop(cuda::emulated_plugin(), {request}, {4, 60}, gpu_spec(), 4);
  loop.read_prompt(0);
  const auto next = [&](size_t i) { return tokens[i].token; };
  const auto wrong = static_cast<int32_t>((next(1) + 1) % loop.model.gpu.vocab());
  // The second guess is what the first row samples; the fourth, what would follow the third.
  const std::vector<int32_t> guessed = {next(0), wrong, next(1), next(2), next(3)};
  const StepSpan span = {&loop.caches[0], 0, guessed.data(), 5, 0, StepSpan::Wants::kToken, 4};
  loop.model.gpu.launch({&span, 1});
  const StepResult result = loop.model.gpu.await();
  ASSERT_EQ(result.runs.size(), 1u);
  EXPECT_EQ(result.runs.front(), 1);
  ASSERT_EQ(result.tokens.size(), 1u);
  EXPECT_TRUE(same_token(result.tokens.front(), tokens[1]));
  loop.keep(loop.caches[0], 5, 1);
  loop.sampled[0].push_back(result.tokens.front());
  loop.random.seed(1);
  while (loop.step(known)) {
  }
  EXPECT_TRUE(same_tokens(loop.sampled[0], tokens)) << "penalties count what was sampled only";
}

}  // namespace
}  // namespace sinkstream
