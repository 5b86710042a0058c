// Rows to sample from, run through both launches as in a step, and through the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/float_mode.h"
#include "common/philox.h"
#include "cuda/device_array.h"
#include "cuda_emulator/orders.h"
#include "kernels/cuda/sampling/logits.h"
#include "kernels/cuda/sampling/sample.h"
#include "kernels/table.h"
#include "sampling/penalty_ring.h"

namespace sinkstream::cuda {

// One row of a step.
struct SamplingCase {
  std::vector<float> logits;  // [splits][vocab]
  LogitBend bend;             // the same in all rows
  SamplingRow params;         // except bias and penalties
  double min_p = 0;
  int64_t index = 0;  // of the sampled token; at least 0
  std::vector<TokenBias> bias;
  std::vector<int32_t> history;  // tokens that penalties count; empty: no penalties
  int64_t sinks = 1;
  int64_t window = 4;
  bool is_idle = false;
};

struct SamplingAnswer {
  SampledRow sampled = {};
  int32_t id = -77;  // unchanged in idle rows
  float threshold = NAN;
  std::vector<float> values;  // sampled from
};

inline constexpr int64_t kTableCapacity = 40;

// All rows have one vocabulary and a stride of 3 floats more. `used`: scratch memory as a previous
// step left it.
inline std::vector<SamplingAnswer> run_on_gpu(const std::vector<SamplingCase>& cases,
                                              int splits = 1,
                                              DeviceArray<std::byte>* used = nullptr) {
  const auto rows = static_cast<int64_t>(cases.size());
  const auto vocab = static_cast<int64_t>(cases[0].logits.size()) / splits;
  const int64_t stride = vocab + 3;
  std::vector<float> partials(splits * rows * stride, NAN);
  std::vector<TokenRow> tokens(rows);
  std::vector<SamplingRow> params(rows);
  std::vector<TokenBias> bias(1, {INT32_MAX, NAN});  // so no row's bias begins at 0
  const PenaltyTables tables = {nullptr, kTableCapacity};
  DeviceArray<std::byte> table_memory(rows * PenaltyLayout{kTableCapacity}.bytes());
  PenaltyTables penalties = tables;
  penalties.memory = table_memory.get();
  for (int64_t r = 0; r < rows; ++r) {
    const SamplingCase& c = cases[r];
    for (int s = 0; s < splits; ++s) {
      std::copy_n(c.logits.data() + s * vocab, vocab, partials.data() + (s * rows + r) * stride);
    }
    tokens[r] = {.index = c.index - 1, .sequence = c.is_idle ? -1 : static_cast<int32_t>(r)};
    params[r] = c.params;
    params[r].log_min_p = std::log(c.min_p);
    params[r].bias_begin = static_cast<int32_t>(bias.size());
    params[r].bias_count = static_cast<int32_t>(c.bias.size());
    params[r].seat = static_cast<int32_t>(rows + 1 - r);  // there are two more seats than rows
    bias.insert(bias.end(), c.bias.begin(), c.bias.end());
    if (c.history.empty()) continue;
    params[r].penalties = static_cast<int32_t>(rows - 1 - r);
    penalties_reset({penalties, params[r].penalties, c.sinks, c.window}, {});
    penalties_append(
        {penalties, params[r].penalties, c.history.data(), static_cast<int64_t>(c.history.size())},
        {});
  }
  const Partials input = {partials.data(), splits, rows, stride};
  DeviceArray<std::byte> unused(sampling_scratch_bytes(vocab, rows));
  DeviceArray<std::byte>& scratch = used != nullptr ? *used : unused;
  std::vector<int32_t> ids(rows + 2, -77);
  std::vector<SampledRow> sampled(rows);
  std::vector<float> thresholds(rows, NAN);
  EXPECT_EQ(logits({.logits = input,
                    .bend = cases[0].bend,
                    .rows = rows,
                    .vocab = vocab,
                    .tokens = tokens.data(),
                    .params = params.data(),
                    .bias = bias.data(),
                    .penalties = penalties,
                    .scratch = scratch.get()},
                   {}),
            kSuccess);
  std::vector<SamplingAnswer> answers(rows);
  const SamplingLayout layout{vocab};
  for (int64_t r = 0; r < rows; ++r) {
    const auto* values =
        reinterpret_cast<const float*>(scratch.get() + r * layout.bytes() + layout.values_offset());
    if (!cases[r].is_idle) answers[r].values.assign(values, values + vocab);
  }
  EXPECT_EQ(sample({.logits = input,
                    .bend = cases[0].bend,
                    .rows = rows,
                    .vocab = vocab,
                    .tokens = tokens.data(),
                    .params = params.data(),
                    .penalties = penalties,
                    .scratch = scratch.get(),
                    .ids = ids.data(),
                    .sampled = sampled.data(),
                    .thresholds = thresholds.data()},
                   {}),
            kSuccess);
  for (int64_t r = 0; r < rows; ++r) {
    answers[r].sampled = sampled[r];
    answers[r].id = ids[params[r].seat];
    answers[r].threshold = thresholds[r];
  }
  return answers;
}

inline SamplingAnswer run_on_gpu(const SamplingCase& one, int splits = 1) {
  return run_on_gpu(std::vector<SamplingCase>{one}, splits)[0];
}

// The same row by the reference; `at` replaces the random number if it is not negative.
inline SamplingAnswer run_reference(const SamplingCase& c, int splits = 1, double at = -1) {
  const auto vocab = static_cast<int64_t>(c.logits.size()) / splits;
  std::vector<float> raw(c.logits.begin(), c.logits.begin() + vocab);
  for (int s = 1; s < splits; ++s) {
    for (int64_t i = 0; i < vocab; ++i) raw[i] += c.logits[s * vocab + i];
  }
  ThreadPool pool(1);
  if (c.bend.scale != 1 || c.bend.soft_cap > 0) {
    reference_kernels().soft_cap({.values = raw.data(),
                                  .rows = 1,
                                  .dim = vocab,
                                  .scale = c.bend.scale,
                                  .cap = c.bend.soft_cap},
                                 {&pool});
  }
  PenaltyRing ring(c.sinks, c.window, INT64_MAX);
  for (const int32_t id : c.history) ring.append(id);
  SamplingAnswer answer;
  answer.values.resize(vocab);
  bool is_finite = false;
  reference_kernels().logits({.input = raw.data(),
                              .out = answer.values.data(),
                              .vocab = vocab,
                              .bias = c.bias.data(),
                              .bias_count = static_cast<int64_t>(c.bias.size()),
                              .counts = ring.counts().data(),
                              .count_count = static_cast<int64_t>(ring.counts().size()),
                              .repetition_penalty = c.params.repetition_penalty,
                              .presence_penalty = c.params.presence_penalty,
                              .frequency_penalty = c.params.frequency_penalty,
                              .temperature = c.params.temperature,
                              .is_finite = &is_finite,
                              .log_sum_exp = &answer.sampled.log_sum_exp},
                             {&pool});
  answer.sampled.is_finite = is_finite;
  answer.sampled.token = -1;
  answer.id = 0;
  if (!is_finite) return answer;
  if (at < 0) at = uniform(c.params.seed, static_cast<uint64_t>(c.index));
  reference_kernels().sample({.logits = answer.values.data(),
                              .vocab = vocab,
                              .greedy = c.params.greedy != 0,
                              .top_k = c.params.top_k,
                              .top_p = c.params.top_p,
                              .min_p = c.min_p,
                              .uniform = at,
                              .token = &answer.sampled.token,
                              .threshold = &answer.threshold},
                             {&pool});
  if (answer.sampled.token < 0) return answer;
  answer.id = answer.sampled.token;
  answer.sampled.logprob =
      static_cast<float>(raw[answer.sampled.token] - answer.sampled.log_sum_exp);
  return answer;
}

inline std::vector<float> normal_row(int64_t count, float spread, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(count);
  for (float& x : row) x = normal(random);
  return row;
}

}  // namespace sinkstream::cuda
