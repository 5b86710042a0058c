#pragma once

#include "kernels/cpu/math.inl"
#include "kernels/cpu/sampling/vocab_blocks.inl"

constexpr float kLargestFloat = __FLT_MAX__;

SINKSTREAM_INLINE float within_range(float x) {
  return x > kLargestFloat ? kLargestFloat : x < -kLargestFloat ? -kLargestFloat : x;
}

// x · 0 is 0 for finite x and NaN otherwise, and NaN stays in a sum.
bool all_finite(const float* x, int64_t count) {
  Vec zeros[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int chain = 0; chain < 4; ++chain) {
      zeros[chain] = fma(load(x + i + chain * kLanes), Vec{}, zeros[chain]);
    }
  }
  float zero = reduce_add((zeros[0] + zeros[1]) + (zeros[2] + zeros[3]));
  for (; i < count; ++i) zero += x[i] * 0.0f;
  return zero == 0;
}

double log_sum_exp(const float* x, int64_t count) {
  const VocabBlocks blocks(x, count);
  Vec lanes = block_max_lanes(blocks[0]);
  for (int64_t b = 1; b < blocks.count(); ++b) lanes = max(lanes, block_max_lanes(blocks[b]));
  const float largest = reduce_max(lanes);
  double sum = 0;
  for (int64_t b = 0; b < blocks.count(); ++b) {
    Vec block_sum{};
    for (int64_t i = 0; i < kVocabBlock; i += kLanes) {
      block_sum = block_sum + exp_nonpositive(load(blocks[b] + i) - largest);
    }
    sum += reduce_add(block_sum);
  }
  return largest + __builtin_log(sum);
}

void add_bias(const LogitsArgs& args) {
  for (int64_t i = 0; i < args.bias_count; ++i) {
    const TokenBias entry = args.bias[i];
    if (entry.bias < -kLargestFloat) continue;  // forbids the token: see `forbid`
    args.out[entry.id] = within_range(args.out[entry.id] + entry.bias);
  }
}

void penalize(const LogitsArgs& args) {
  for (int64_t i = 0; i < args.count_count; ++i) {
    float x = args.out[args.counts[i].id];
    x = within_range(x < 0 ? x * args.repetition_penalty : x / args.repetition_penalty);
    const float occurrences = static_cast<float>(args.counts[i].count);
    x -= args.presence_penalty + args.frequency_penalty * occurrences;
    args.out[args.counts[i].id] = within_range(x);
  }
}

// Divides, like transformers: multiplying by 1 / temperature gives different last bits.
void divide(float* x, int64_t count, float temperature) {
  const Vec largest = broadcast(kLargestFloat);
  const Vec divisor = broadcast(temperature);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(x + i, max(min(load(x + i) / divisor, largest), -largest));
  }
  for (; i < count; ++i) x[i] = within_range(x[i] / temperature);
}

// Last, so that nothing after it can allow a forbidden token again.
void forbid(const LogitsArgs& args) {
  for (int64_t i = 0; i < args.bias_count; ++i) {
    if (args.bias[i].bias < -kLargestFloat) args.out[args.bias[i].id] = -__builtin_inff();
  }
}

void logits(const LogitsArgs& args, const Launch& launch) {
  launch.pool->run(1, [&](int64_t, int) {
    *args.is_finite = all_finite(args.input, args.vocab);
    if (!*args.is_finite) return;
    if (args.log_sum_exp != nullptr) *args.log_sum_exp = log_sum_exp(args.input, args.vocab);
    if (args.out == nullptr) return;
    if (args.out != args.input) {
      __builtin_memcpy(args.out, args.input, static_cast<size_t>(args.vocab) * sizeof(float));
    }
    add_bias(args);
    penalize(args);
    if (args.temperature != 1) divide(args.out, args.vocab, args.temperature);
    forbid(args);
  });
}
