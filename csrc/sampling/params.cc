#include "sampling/params.h"

#include <algorithm>
#include <charconv>
#include <cmath>

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

void check_count(const char* name, size_t count, int64_t most) {
  if (count <= static_cast<size_t>(most)) return;
  refuse(name, "have at most ", most, " entries, but has ", count, ".");
}

void check_id(const char* name, const char* part, int32_t id, int64_t vocab) {
  if (id >= 0 && id < vocab) return;
  throw InvalidArgument(cat("stream: ", part, " of `", name, "` must be a token id in [0, ", vocab,
                            "), but is ", id, "."),
                        name);
}

void check_logit_bias(const char* name, const std::vector<TokenBias>& entries, int64_t vocab) {
  check_count(name, entries.size(), vocab);
  std::vector<int32_t> ids;
  ids.reserve(entries.size());
  int64_t forbidden = 0;
  for (const TokenBias& entry : entries) {
    check_id(name, "a key", entry.id, vocab);
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
    refuse(name, "name each token once, but names token ", *twice, " twice.");
  }
  if (forbidden == vocab) {
    refuse(name, "leave a token to sample, but forbids all ", vocab, ".");
  }
}

void check_strings(const char* name, const std::vector<std::string>& strings) {
  check_count(name, strings.size(), kMaxStops);
  for (const std::string& text : strings) {
    if (text.empty()) refuse(name, "not contain an empty string, but does.");
    if (text.size() > kMaxStopBytes) {
      refuse(name, "hold strings of at most ", kMaxStopBytes, " bytes, but one has ", text.size(),
             ".");
    }
    const size_t offset = find_invalid_utf8(text);
    if (offset != std::string::npos) {
      refuse(name, "be valid UTF-8, but one string is invalid at byte ", offset, ".");
    }
  }
}

// One overload for each type of option.
struct Checker {
  int64_t vocab;

  void operator()(const char* name, double value, NumberRange range) const {
    if (value <= range.high && (range.is_open ? value > range.low : value >= range.low)) return;
    refuse(name, "be in ", range.is_open ? "(" : "[", shown(range.low), ", ", shown(range.high),
           "], but is ", shown(value), ".");
  }
  void operator()(const char* name, int64_t value, IntegerRange range) const {
    if (value >= range.low && value <= range.high) return;
    refuse(name, "be in [", range.low, ", ", range.high, "], but is ", value, ".");
  }
  template <typename T, typename Range>
  void operator()(const char* name, const std::optional<T>& value, Range range) const {
    if (value) (*this)(name, *value, range);
  }
  void operator()(const char* name, const std::vector<TokenBias>& entries, NoRange) const {
    check_logit_bias(name, entries, vocab);
  }
  void operator()(const char* name, const std::vector<std::string>& strings, NoRange) const {
    check_strings(name, strings);
  }
  void operator()(const char* name, const std::vector<int32_t>& ids, MostIds most) const {
    check_count(name, ids.size(), most.ids);
    for (const int32_t id : ids) check_id(name, "an item", id, vocab);
  }
  void operator()(const char*, bool, NoRange) const {}
  void operator()(const char*, uint64_t, NoRange) const {}
};

}  // namespace

void validate(const SamplingParams& params, int64_t vocab) {
  for_each_option(params, Checker{vocab});
}

}  // namespace sinkstream
