// What one request asks of sampling, and the one place that judges it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/logits.h"

namespace sinkstream {

// Every default is neutral: it changes nothing.
struct SamplingParams {
  // Divides the logits. [0, 100]; 1 is neutral; below kGreedyTemperature: the likeliest token.
  double temperature = 1;
  // Keeps the k likeliest tokens. [0, 2^31 − 1]; 0 is neutral.
  int64_t top_k = 0;
  // Keeps the likeliest tokens that together have this probability. (0, 1]; 1 is neutral.
  double top_p = 1;
  // Keeps tokens with at least this much of the likeliest one's probability. [0, 1]; 0 is neutral.
  double min_p = 0;
  // Makes tokens that are live in the cache less likely. [0.01, 100]; 1 is neutral.
  double repetition_penalty = 1;
  // Subtracted from the logit of each live token. [−100, 100]; 0 is neutral.
  double presence_penalty = 0;
  // Subtracted once for each live occurrence. [−100, 100]; 0 is neutral.
  double frequency_penalty = 0;
  // Added to logits. Ids in [0, vocab), each once; finite, or −infinity to forbid a token, but
  // not all of them. Empty is neutral.
  std::vector<TokenBias> logit_bias = {};
  // How many of the likeliest tokens to report with each token. [0, 20]
  int64_t logprobs = 0;
  // Keys the draws: the same seed draws the same tokens. Any value.
  uint64_t seed = 0;
  // Tokens after which the stream ends. [0, 2^53]; none: it never ends by length.
  std::optional<int64_t> max_tokens = {};
  // Ends the stream so many seconds after the request. (0, 1e9]; none: never.
  std::optional<double> timeout_s = {};
  // The stream ends before the first of these. Up to kMaxStops strings of 1 to kMaxStopBytes
  // bytes of UTF-8.
  std::vector<std::string> stop = {};
  // The stream ends at any of these, as at an end token, even with `ignore_eos`.
  // Up to kMaxStopTokens ids in [0, vocab).
  std::vector<int32_t> stop_token_ids = {};
  // The tokenizer's end tokens do not end the stream.
  bool ignore_eos = false;
  // Tokens per delivered piece of text. [1, 2^20]
  int64_t stream_interval = 1;
};

// Smaller temperatures are greedy: at 1e-5 logits that differ by 0.001 are e^100 apart already.
constexpr double kGreedyTemperature = 1e-5;
inline bool is_greedy(const SamplingParams& params) {
  return params.temperature < kGreedyTemperature;
}

// Whether which tokens are live changes a logit.
inline bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

constexpr double kMaxTimeout = 1e9;  // seconds, some 30 years: a sum with a time cannot overflow
constexpr int64_t kMaxLogprobs = 20;
constexpr int64_t kMaxStops = 64;
constexpr int64_t kMaxStopBytes = 4096;
constexpr int64_t kMaxStopTokens = 4096;

// Throws InvalidArgument for the first value out of its range, with `param` set to its name.
// `vocab`, at least 1, is the number of the model's logits.
void validate(const SamplingParams& params, int64_t vocab);

}  // namespace sinkstream
