#include "sampling/params.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "common/errors.h"
#include "sampling/utf8.h"

namespace sinkstream {

namespace {

// The shortest text that reads back as the same number: 1.0000001 must not be shown as 1.
std::string shown(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

template <typename... Parts>
[[noreturn]] void refuse(const char* name, const Parts&... parts) {
  throw InvalidArgument(cat("stream: `", name, "` must ", parts...), name);
}

// NaN is in no range.
void check_number(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return;
  refuse(name, "be in [", shown(low), ", ", shown(high), "], but is ", shown(value), ".");
}

void check_positive(const char* name, double value, double high) {
  if (value > 0 && value <= high) return;
  refuse(name, "be in (0, ", shown(high), "], but is ", shown(value), ".");
}

void check_integer(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  refuse(name, "be in [", low, ", ", high, "], but is ", value, ".");
}

void check_count(const char* name, size_t count, int64_t most) {
  if (count <= static_cast<size_t>(most)) return;
  refuse(name, "have at most ", most, " entries, but has ", count, ".");
}

void check_id(const char* name, int32_t id, int64_t vocab) {
  if (id >= 0 && id < vocab) return;
  refuse(name, "hold token ids in [0, ", vocab, "), but holds ", id, ".");
}

void check_logit_bias(const std::vector<TokenBias>& entries, int64_t vocab) {
  const char* name = "logit_bias";
  check_count(name, entries.size(), vocab);
  std::vector<int32_t> ids;
  ids.reserve(entries.size());
  int64_t forbidden = 0;
  for (const TokenBias& entry : entries) {
    check_id(name, entry.id, vocab);
    if (std::isnan(entry.bias) || entry.bias == INFINITY) {
      refuse(name, "be finite, or -inf to forbid a token, but is ", shown(entry.bias),
             " for token ", entry.id, ".");
    }
    forbidden += entry.bias == -INFINITY;
    ids.push_back(entry.id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) {
    refuse(name, "name each token once, but names ", *twice, " twice.");
  }
  if (forbidden == vocab) {
    refuse(name, "leave a token to draw, but forbids all ", vocab, ".");
  }
}

void check_stop(const std::vector<std::string>& stops) {
  const char* name = "stop";
  check_count(name, stops.size(), kMaxStops);
  for (const std::string& stop : stops) {
    if (stop.empty()) refuse(name, "hold no empty string, but holds one.");
    if (stop.size() > kMaxStopBytes) {
      refuse(name, "hold strings of at most ", kMaxStopBytes, " bytes, but one has ", stop.size(),
             ".");
    }
    const size_t offset = find_invalid_utf8(stop);
    if (offset != std::string::npos) {
      refuse(name, "hold valid UTF-8, but one string has none at byte ", offset, ".");
    }
  }
}

}  // namespace

void validate(const SamplingParams& params, int64_t vocab) {
  check_number("temperature", params.temperature, 0, 100);
  check_integer("top_k", params.top_k, 0, std::numeric_limits<int32_t>::max());
  check_positive("top_p", params.top_p, 1);
  check_number("min_p", params.min_p, 0, 1);
  check_number("repetition_penalty", params.repetition_penalty, 0.01, 100);
  check_number("presence_penalty", params.presence_penalty, -100, 100);
  check_number("frequency_penalty", params.frequency_penalty, -100, 100);
  check_logit_bias(params.logit_bias, vocab);
  check_integer("logprobs", params.logprobs, 0, kMaxLogprobs);
  // 2^53: sums with lengths cannot overflow, and every number survives JSON.
  if (params.max_tokens) check_integer("max_tokens", *params.max_tokens, 0, int64_t{1} << 53);
  if (params.timeout_s) check_positive("timeout_s", *params.timeout_s, kMaxTimeout);
  check_stop(params.stop);
  check_count("stop_token_ids", params.stop_token_ids.size(), kMaxStopTokens);
  for (const int32_t id : params.stop_token_ids) check_id("stop_token_ids", id, vocab);
  check_integer("stream_interval", params.stream_interval, 1, 1 << 20);
}

}  // namespace sinkstream
