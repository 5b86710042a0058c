// The sampling options of one request, their ranges, and their validation.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/logits.h"

namespace sinkstream {

// Every default is neutral: it changes nothing. `for_each_option` has the ranges.
struct SamplingParams {
  // Divides the logits. 1 is neutral; below kGreedyTemperature: the most probable token.
  double temperature = 1;
  // Keeps the k most probable tokens; 0 is neutral.
  int64_t top_k = 0;
  // Keeps the most probable tokens that together have this probability; 1 is neutral.
  double top_p = 1;
  // Keeps tokens with at least this share of the highest probability; 0 is neutral.
  double min_p = 0;
  // Makes tokens that are live in the cache less likely; 1 is neutral.
  double repetition_penalty = 1;
  // Subtracted from the logit of each live token; 0 is neutral.
  double presence_penalty = 0;
  // Subtracted once for each live occurrence; 0 is neutral.
  double frequency_penalty = 0;
  // Added to logits. Ids in [0, vocab), each once; finite, or −infinity to forbid a token, but
  // not all of them. Empty is neutral.
  std::vector<TokenBias> logit_bias = {};
  // How many of the most probable tokens to report with each token.
  int64_t logprobs = 0;
  // Whether to report the log-probability of each prompt token, and how many of the most probable
  // tokens with it; none: not at all, and the prompt may share a prefix.
  std::optional<int64_t> prompt_logprobs = {};
  // The same seed samples the same tokens. Any value is valid.
  uint64_t seed = 0;
  // The maximum number of tokens to generate; none: no limit.
  std::optional<int64_t> max_tokens = {};
  // The stream ends this many seconds after the request; none: no limit.
  std::optional<double> timeout_s = {};
  // Of the waiting requests of one share, those with lower numbers begin first; 0 is neutral.
  int64_t priority = 0;
  // The stream ends before the first of these strings. Up to kMaxStops, of 1 to kMaxStopBytes bytes
  // of UTF-8 each.
  std::vector<std::string> stop = {};
  // The stream ends at any of these tokens, as at an end token, even with `ignore_eos`. Up to
  // kMaxStopTokens ids in [0, vocab).
  std::vector<int32_t> stop_token_ids = {};
  // The tokenizer's end tokens do not end the stream.
  bool ignore_eos = false;
  // Tokens per delivered piece of text.
  int64_t stream_interval = 1;
  // The maximum number of guessed tokens that a step verifies; none: no limit of its own. Changes
  // no token.
  std::optional<int64_t> speculation = {};
  // What the reply probably says: guesses are learned from it. Up to kMaxPrediction ids in
  // [0, vocab). Changes no token.
  std::vector<int32_t> prediction = {};
};

constexpr double kMaxTimeout = 1e9;  // seconds, about 30 years: adding it to a time cannot overflow
constexpr int64_t kMaxPriority = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLogprobs = 20;
constexpr int64_t kMaxTopK = std::numeric_limits<int32_t>::max();
// 2^53: sums with lengths cannot overflow, and every integer survives JSON.
constexpr int64_t kMaxTokens = int64_t{1} << 53;
constexpr int64_t kMaxStreamInterval = 1 << 20;
constexpr int64_t kMaxSpeculation = 63;
constexpr int64_t kMaxPrediction = 1 << 17;
constexpr int64_t kMaxStops = 64;
constexpr int64_t kMaxStopBytes = 4096;
constexpr int64_t kMaxStopTokens = 4096;

// Both ends included; an open range excludes `low`. NaN is in no range.
struct NumberRange {
  double low;
  double high;
  bool is_open = false;
};
constexpr NumberRange positive_to(double high) { return {0, high, true}; }
struct IntegerRange {
  int64_t low;
  int64_t high;
};
// Of a list of token ids.
struct MostIds {
  int64_t ids;
};
// Every value is valid, or `validate` has a rule for the type.
struct NoRange {};

// Calls visit(name, field, range) for every option, in the order in which `validate` checks them.
// The binding reads the options of this list, and no others, from a request.
// python/sinkstream/request/options.py declares the same names and ranges; tests compare the two.
template <typename Params, typename Visit>
void for_each_option(Params& params, Visit&& visit) {
  visit("temperature", params.temperature, NumberRange{0, 100});
  visit("top_k", params.top_k, IntegerRange{0, kMaxTopK});
  visit("top_p", params.top_p, positive_to(1));
  visit("min_p", params.min_p, NumberRange{0, 1});
  visit("repetition_penalty", params.repetition_penalty, NumberRange{0.01, 100});
  visit("presence_penalty", params.presence_penalty, NumberRange{-100, 100});
  visit("frequency_penalty", params.frequency_penalty, NumberRange{-100, 100});
  visit("logit_bias", params.logit_bias, NoRange{});
  visit("logprobs", params.logprobs, IntegerRange{0, kMaxLogprobs});
  visit("prompt_logprobs", params.prompt_logprobs, IntegerRange{0, kMaxLogprobs});
  visit("seed", params.seed, NoRange{});
  visit("max_tokens", params.max_tokens, IntegerRange{0, kMaxTokens});
  visit("timeout_s", params.timeout_s, positive_to(kMaxTimeout));
  visit("priority", params.priority, IntegerRange{-kMaxPriority, kMaxPriority});
  visit("stop", params.stop, NoRange{});
  visit("stop_token_ids", params.stop_token_ids, MostIds{kMaxStopTokens});
  visit("ignore_eos", params.ignore_eos, NoRange{});
  visit("stream_interval", params.stream_interval, IntegerRange{1, kMaxStreamInterval});
  visit("speculation", params.speculation, IntegerRange{0, kMaxSpeculation});
  visit("prediction", params.prediction, MostIds{kMaxPrediction});
}

// Temperatures below this are greedy: at 1e-5, a difference of 0.001 between logits is already a
// factor of e^100 between probabilities.
constexpr double kGreedyTemperature = 1e-5;
inline bool is_greedy(const SamplingParams& params) {
  return params.temperature < kGreedyTemperature;
}

// Whether the logits depend on which tokens are live.
inline bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

// Throws InvalidArgument for the first value out of its range, with `param` set to its name.
// `vocab`, at least 1, is the number of the model's logits.
void validate(const SamplingParams& params, int64_t vocab);

}  // namespace sinkstream
