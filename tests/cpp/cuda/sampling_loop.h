// Sequences that draw on a GPU: one step ahead, as the engine does it, and one token after the
// other, which is what must come out.
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
                const DecoderSpec& spec = gpu_spec())
      : source(generic_kernels(), 1, {InputType::kBFloat16, DType::kFloat16, 1}, spec),
        plugin(plugin),
        gpu(source.spec, source.packed(), plugin, nullptr, nullptr,
            {DType::kFloat16, kMostTokens, sequences, pages}) {}

  GpuSequences sequences(const Window& window, int64_t count = 1) {
    return GpuSequences(plugin, gpu, source.spec.layers, window, count);
  }

  RandomDecoder source;
  const cuda::Plugin& plugin;
  CudaDecoder gpu;
};

// What one sequence asks for.
struct Asked {
  SamplingParams params;
  std::vector<int32_t> prompt;
  int64_t count = 1;     // tokens to draw
  int64_t chunk = 1000;  // of the prompt, in a step
  int64_t begins = 0;    // at this step
};

inline bool same_draw(const SampledToken& a, const SampledToken& b) {
  return a.token == b.token && a.is_finite == b.is_finite &&
         std::memcmp(&a.logprob, &b.logprob, sizeof(float)) == 0;
}

inline bool same_draws(const std::vector<SampledToken>& a, const std::vector<SampledToken>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_draw);
}

// By forward and the two ops of sampling. The model's GPU must not be lazy.
inline std::vector<SampledToken> draw_one_by_one(SamplingModel& model, const Window& window,
                                                 const Asked& asked) {
  const cuda::Ops& ops = model.plugin.ops;
  const SamplingParams& params = asked.params;
  const int64_t vocab = model.gpu.vocab();
  GpuSequences sequences = model.sequences(window);
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
  row.penalties = 0;  // neutral ones change nothing
  row.bias_count = static_cast<int32_t>(params.logit_bias.size());

  std::vector<SampledToken> drawn;
  std::vector<int32_t> next = asked.prompt;
  for (int64_t i = 0; i < asked.count; ++i) {
    for (size_t t = 0; t < next.size(); t += SamplingModel::kMostTokens) {
      const auto count = std::min<int64_t>(SamplingModel::kMostTokens, std::ssize(next) - t);
      const ForwardSpan span{&sequences[0], next.data() + t, count, LogitsOf::kLast};
      model.gpu.forward({&span, 1}, logits.get());
    }
    if (i == 0) ops.penalties_append({tables, 0, next.data(), std::ssize(next)}, nullptr);
    const cuda::TokenRow token = {.index = sequences[0].length() - 1, .sequence = 0};
    const cuda::Partials partials = {logits.get(), 1, 1, vocab};
    ops.logits({partials, 1, vocab, &token, &row, params.logit_bias.data(), tables, scratch.get()},
               nullptr);
    int32_t id = 0;
    cuda::SampledRow sampled;
    ops.sample({partials, 1, vocab, &token, &row, tables, scratch.get(), &id, &sampled}, nullptr);
    drawn.push_back({sampled.token, sampled.logprob, sampled.is_finite != 0});
    next = {id};
  }
  return drawn;
}

// One step ahead of what it knows. Sequence i has seat i.
class SamplingLoop {
 public:
  SamplingLoop(SamplingModel& model, const Window& window, const std::vector<Asked>& asked)
      : model_(model),
        sequences_(model.sequences(window, std::ssize(asked))),
        asked_(asked),
        all_(asked.size()) {}

  // Until all have what they asked for.
  void run() {
    for (bool is_left = true; is_left || !in_flight_.empty();) {
      is_left = launch();
      if (std::ssize(in_flight_) == 2 || (!is_left && !in_flight_.empty())) await();
    }
  }

  const std::vector<SampledToken>& drawn(size_t i) const { return all_[i].drawn; }

 private:
  struct Sequence {
    int64_t launched = 0;  // tokens that are in the cache or under way
    std::vector<SampledToken> drawn;
  };
  struct Part {
    size_t sequence;
    SampleSpan span;
  };

  bool has_ended(size_t i) const { return std::ssize(all_[i].drawn) == asked_[i].count; }

  // Whether any sequence goes on.
  bool launch() {
    std::vector<Part> parts;
    std::vector<SampleSpan> spans;
    bool is_any_left = false;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (has_ended(i)) continue;
      is_any_left = true;
      if (asked_[i].begins > step_) continue;
      parts.push_back({i, next_of(i)});
      spans.push_back(parts.back().span);
    }
    ++step_;
    if (spans.empty()) return is_any_left;
    model_.gpu.launch(spans);
    in_flight_.push_back(parts);
    return true;
  }

  SampleSpan next_of(size_t i) {
    Sequence& sequence = all_[i];
    const Asked& asked = asked_[i];
    SampleSpan span;
    span.cache = &sequences_[i];
    span.in_flight = sequence.launched - sequences_[i].length();
    span.seat = static_cast<int64_t>(i);
    span.count = 1;
    span.wants = SampleSpan::Wants::kToken;
    if (sequence.launched == 0) {
      model_.gpu.begin_sampling(span.seat, asked.params, sequences_[i].window(), {});
    }
    const int64_t left = std::ssize(asked.prompt) - sequence.launched;
    if (left > 0) {
      span.tokens = asked.prompt.data() + sequence.launched;
      span.count = std::min(left, asked.chunk);
      if (span.count < left) span.wants = SampleSpan::Wants::kNothing;
    }
    sequence.launched += span.count;
    return span;
  }

  // A sequence that has ended takes no more: what comes of it was computed in vain.
  void await() {
    const SampledStep step = model_.gpu.await();
    auto token = step.tokens.begin();
    for (const Part& part : in_flight_.front()) {
      const bool has_token = part.span.wants == SampleSpan::Wants::kToken;
      if (!has_ended(part.sequence)) {
        part.span.cache->advance(part.span.count);
        if (has_token) all_[part.sequence].drawn.push_back(*token);
      }
      token += has_token;
    }
    in_flight_.pop_front();
  }

  SamplingModel& model_;
  GpuSequences sequences_;
  std::vector<Asked> asked_;
  std::vector<Sequence> all_;
  std::deque<std::vector<Part>> in_flight_;
  int64_t step_ = 0;
};

}  // namespace sinkstream
