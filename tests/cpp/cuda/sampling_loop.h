// Sampling on a GPU: one step ahead, as the engine does it, and one token after another, which must
// give the same result.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "cuda/device_array.h"
#include "cuda/emulated_gpu.h"
#include "cuda/gpu_model.h"

namespace sinkstream {

// A small model with random weights on a GPU.
struct SamplingModel {
  static constexpr int64_t kMostTokens = 96;

  SamplingModel(const cuda::Plugin& plugin, int64_t sequences, int64_t pages = 4,
                const DecoderSpec& spec = gpu_spec(), int64_t max_drafts = 0)
      : source(generic_kernels(), 1, {InputType::kBFloat16, DType::kFloat16, 1}, spec),
        plugin(plugin),
        gpu(source.spec, source.packed(), plugin, nullptr, nullptr,
            {DType::kFloat16, kMostTokens, sequences, pages, max_drafts}) {}

  GpuCaches make_caches(const Window& window, int64_t count = 1) {
    return GpuCaches(plugin, gpu, source.spec.cache_layers(), window, count);
  }

  RandomDecoder source;
  const cuda::Plugin& plugin;
  CudaDecoder gpu;
};

// A sequence's request.
struct SamplingRequest {
  SamplingParams params;
  std::vector<int32_t> prompt;
  int64_t count = 1;     // tokens to sample
  int64_t chunk = 1000;  // prompt tokens per step
  int64_t begins = 0;    // the step at which it starts
};

inline bool same_token(const SampledToken& a, const SampledToken& b) {
  return a.token == b.token && a.is_finite == b.is_finite &&
         std::memcmp(&a.logprob, &b.logprob, sizeof(float)) == 0;
}

inline bool same_tokens(const std::vector<SampledToken>& a, const std::vector<SampledToken>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_token);
}

// Samples with forward and the two sampling ops. The model's GPU must not be lazy.
inline std::vector<SampledToken> sample_one_by_one(SamplingModel& model, const Window& window,
                                                   const SamplingRequest& request) {
  const cuda::Ops& ops = model.plugin.ops;
  const SamplingParams& params = request.params;
  const int64_t vocab = model.gpu.vocab();
  GpuCaches caches = model.make_caches(window);
  cuda::DeviceArray<float> logits(vocab);
  cuda::DeviceArray<std::byte> table(cuda::PenaltyLayout{window.capacity()}.bytes());
  cuda::DeviceArray<std::byte> scratch(cuda::sampling_scratch_bytes(vocab, 1));
  const cuda::PenaltyTables tables = {table.get(), window.capacity()};
  ops.penalties_reset({tables, 0, window.sinks, window.window}, nullptr);
  cuda::SamplingRow row;
  row.seed = params.seed;
  row.greedy = params.temperature == 0;
  if (params.temperature > 0) row.temperature = static_cast<float>(params.temperature);
  row.top_k = params.top_k;
  row.top_p = params.top_p;
  row.log_min_p = std::log(params.min_p);
  row.repetition_penalty = static_cast<float>(params.repetition_penalty);
  row.presence_penalty = static_cast<float>(params.presence_penalty);
  row.frequency_penalty = static_cast<float>(params.frequency_penalty);
  row.penalties = 0;  // neutral penalties change nothing
  row.bias_count = static_cast<int32_t>(params.logit_bias.size());

  std::vector<SampledToken> sampled;
  std::vector<int32_t> next = request.prompt;
  for (int64_t i = 0; i < request.count; ++i) {
    for (size_t t = 0; t < next.size(); t += SamplingModel::kMostTokens) {
      const auto count = std::min<int64_t>(SamplingModel::kMostTokens, std::ssize(next) - t);
      const ForwardSpan span{&caches[0], next.data() + t, count, LogitsOf::kLast};
      forward_and_advance(model.gpu, {&span, 1}, logits.get());
    }
    if (i == 0) ops.penalties_append({tables, 0, next.data(), std::ssize(next)}, nullptr);
    const cuda::TokenRow token = {.index = caches[0].length() - 1, .sequence = 0};
    const cuda::Partials partials = {logits.get(), 1, 1, vocab};
    ops.logits(
        {partials, {}, 1, vocab, &token, &row, params.logit_bias.data(), tables, scratch.get()},
        nullptr);
    int32_t id = 0;
    cuda::SampledRow result;
    ops.sample({partials, {}, 1, vocab, &token, &row, tables, scratch.get(), &id, &result},
               nullptr);
    sampled.push_back({result.token, result.logprob, result.is_finite != 0});
    next = {id};
  }
  return sampled;
}

// Samples one step ahead. Sequence i has seat i.
class SamplingLoop {
 public:
  SamplingLoop(SamplingModel& model, const Window& window,
               const std::vector<SamplingRequest>& requests)
      : model_(model),
        caches_(model.make_caches(window, std::ssize(requests))),
        requests_(requests),
        all_(requests.size()) {}

  // Until every request has its tokens.
  void run() {
    for (bool is_left = true; is_left || !in_flight_.empty();) {
      is_left = launch();
      if (std::ssize(in_flight_) == 2 || (!is_left && !in_flight_.empty())) await();
    }
  }

  const std::vector<SampledToken>& sampled(size_t i) const { return all_[i].sampled; }

 private:
  struct Sequence {
    int64_t launched = 0;  // tokens in the cache or in flight
    std::vector<SampledToken> sampled;
  };
  struct Part {
    size_t sequence;
    StepSpan span;
  };

  bool has_ended(size_t i) const { return std::ssize(all_[i].sampled) == requests_[i].count; }

  // Whether any sequence continues.
  bool launch() {
    std::vector<Part> parts;
    std::vector<StepSpan> spans;
    bool is_any_left = false;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (has_ended(i)) continue;
      is_any_left = true;
      if (requests_[i].begins > step_) continue;
      parts.push_back({i, next_of(i)});
      spans.push_back(parts.back().span);
    }
    ++step_;
    if (spans.empty()) return is_any_left;
    model_.gpu.launch(spans);
    in_flight_.push_back(parts);
    return true;
  }

  StepSpan next_of(size_t i) {
    Sequence& sequence = all_[i];
    const SamplingRequest& request = requests_[i];
    StepSpan span;
    span.cache = &caches_[i];
    span.in_flight = sequence.launched - caches_[i].length();
    span.seat = static_cast<int64_t>(i);
    span.count = 1;
    span.wants = StepSpan::Wants::kToken;
    if (sequence.launched == 0) {
      model_.gpu.begin_sampling(span.seat, request.params, caches_[i].window(), {});
    }
    const int64_t left = std::ssize(request.prompt) - sequence.launched;
    if (left > 0) {
      span.tokens = request.prompt.data() + sequence.launched;
      span.count = std::min(left, request.chunk);
      if (span.count < left) span.wants = StepSpan::Wants::kNothing;
    }
    sequence.launched += span.count;
    return span;
  }

  // A sequence that has ended takes no more tokens: its look-ahead token is discarded.
  void await() {
    const StepResult step = model_.gpu.await();
    auto token = step.tokens.begin();
    for (const Part& part : in_flight_.front()) {
      const bool has_token = part.span.wants == StepSpan::Wants::kToken;
      if (!has_ended(part.sequence)) {
        part.span.cache->advance(part.span.count);
        if (has_token) all_[part.sequence].sampled.push_back(*token);
      }
      token += has_token;
    }
    in_flight_.pop_front();
  }

  SamplingModel& model_;
  GpuCaches caches_;
  std::vector<SamplingRequest> requests_;
  std::vector<Sequence> all_;
  std::deque<std::vector<Part>> in_flight_;
  int64_t step_ = 0;
};

}  // namespace sinkstream
