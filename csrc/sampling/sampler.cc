#include "sampling/sampler.h"

#include <utility>

#include "common/philox.h"
#include "sampling/sample_errors.h"

namespace sinkstream {

SamplerScratch::SamplerScratch(int64_t vocab)
    : vocab(vocab),
      logits(Buffer::sparse(vocab * static_cast<int64_t>(sizeof(float)), "logits")),
      sample(Buffer::sparse(sample_scratch_bytes(vocab), "sampling")) {}

Sampler::Sampler(SamplingParams params, int64_t sinks, int64_t window, int64_t max_length)
    : params_(std::move(params)) {
  if (has_penalties(params_)) ring_.emplace(sinks, window, max_length);
}

void Sampler::append(std::span<const int32_t> tokens) {
  if (!ring_) return;
  for (const int32_t token : tokens) ring_->append(token);
}

// Greedy sampling ignores the temperature.
bool Sampler::changes_logits() const {
  return ring_ || !params_.logit_bias.empty() || (!is_greedy(params_) && params_.temperature != 1);
}

Sampled Sampler::sample(const float* logits, int64_t index, const Kernels& kernels,
                        const Launch& launch, SamplerScratch& scratch, TokenMask mask) const {
  bool is_finite = false;
  double log_sum_exp = 0;
  LogitsArgs change = {.input = logits,
                       .vocab = scratch.vocab,
                       .is_finite = &is_finite,
                       .log_sum_exp = &log_sum_exp};
  if (changes_logits() || !mask.empty()) {
    change.out = scratch.logits.as<float>();
    change.bias = params_.logit_bias.data();
    change.bias_count = static_cast<int64_t>(params_.logit_bias.size());
    if (ring_) {
      change.counts = ring_->counts().data();
      change.count_count = static_cast<int64_t>(ring_->counts().size());
    }
    change.repetition_penalty = static_cast<float>(params_.repetition_penalty);
    change.presence_penalty = static_cast<float>(params_.presence_penalty);
    change.frequency_penalty = static_cast<float>(params_.frequency_penalty);
    if (!is_greedy(params_)) change.temperature = static_cast<float>(params_.temperature);
  }
  kernels.logits(change, launch);
  if (!is_finite) refuse_non_finite(logits, scratch.vocab, index);
  if (!mask.empty()) forbid_unmasked(mask, change.out, scratch.vocab);

  Sampled sampled;
  kernels.sample({.logits = change.out != nullptr ? change.out : logits,
                  .vocab = scratch.vocab,
                  .greedy = is_greedy(params_),
                  .top_k = params_.top_k,
                  .top_p = params_.top_p,
                  .min_p = params_.min_p,
                  .uniform = uniform(params_.seed, static_cast<uint64_t>(index)),
                  .scratch = scratch.sample.data(),
                  .token = &sampled.token},
                 launch);
  if (sampled.token < 0) {
    throw mask.empty() ? no_token_left(index, scratch.vocab) : no_allowed_token_left(index);
  }
  sampled.logprob = static_cast<float>(logits[sampled.token] - log_sum_exp);
  if (params_.logprobs > 0) {
    sampled.top = most_probable(logits, scratch.vocab, params_.logprobs, log_sum_exp);
  }
  return sampled;
}

}  // namespace sinkstream
