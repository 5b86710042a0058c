#include "sampling/params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "common/errors.h"

namespace sinkstream {
namespace {

constexpr int64_t kVocab = 100;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Change = std::function<void(SamplingParams&)>;

// The error's sentence, or "" if there is none. Its `param` must be the name in the sentence.
std::string complaint(const Change& change, int64_t vocab = kVocab) {
  SamplingParams params;
  change(params);
  try {
    validate(params, vocab);
  } catch (const InvalidArgument& error) {
    const std::string sentence = error.what();
    EXPECT_EQ(sentence.find("stream: "), 0u) << sentence;
    EXPECT_NE(sentence.find("`" + error.param + "` must "), std::string::npos) << sentence;
    return error.what();
  }
  return "";
}

struct Range {
  const char* name;
  double SamplingParams::*member;
  double low, high;
  const char* text;
};

const Range kRanges[] = {
    {"temperature", &SamplingParams::temperature, 0, 100, "[0, 100]"},
    {"top_p", &SamplingParams::top_p, 0x1p-1074, 1, "(0, 1]"},
    {"min_p", &SamplingParams::min_p, 0, 1, "[0, 1]"},
    {"repetition_penalty", &SamplingParams::repetition_penalty, 0.01, 100, "[0.01, 100]"},
    {"presence_penalty", &SamplingParams::presence_penalty, -100, 100, "[-100, 100]"},
    {"frequency_penalty", &SamplingParams::frequency_penalty, -100, 100, "[-100, 100]"},
};

TEST(Params, DefaultsAreValid) {
  EXPECT_EQ(complaint([](SamplingParams&) {}), "");
  EXPECT_EQ(complaint([](SamplingParams&) {}, 1), "");
}

TEST(Params, TakeATimeoutAboveZeroAndNoEndlessOne) {
  const auto complaint_at = [](double value) {
    return complaint([value](SamplingParams& params) { params.timeout_s = value; });
  };
  for (const double good : {0x1p-1074, 1e-3, 1e9}) EXPECT_EQ(complaint_at(good), "") << good;
  for (const double bad : {-kInfinity, -1.0, -0.0, 0.0, 1.000001e9, kInfinity, kNan}) {
    EXPECT_NE(complaint_at(bad).find("`timeout_s` must be in (0, 1e+09], but is "),
              std::string::npos)
        << bad;
  }
}

TEST(Params, TakeTheEndsOfEveryRangeAndNothingBeyond) {
  for (const Range& range : kRanges) {
    SCOPED_TRACE(range.name);
    const auto complaint_at = [&](double value) {
      return complaint([&](SamplingParams& params) { params.*range.member = value; });
    };
    EXPECT_EQ(complaint_at(range.low), "");
    EXPECT_EQ(complaint_at(range.high), "");
    for (const double bad : {std::nextafter(range.low, -kInfinity),
                             std::nextafter(range.high, kInfinity), range.low - 1, range.high + 1,
                             kNan, kInfinity, -kInfinity, 0x1p31, 0x1p53, 0x1p63, -0x1p63}) {
      EXPECT_NE(
          complaint_at(bad).find(cat("`", range.name, "` must be in ", range.text, ", but is ")),
          std::string::npos)
          << bad;
    }
  }
}

TEST(Params, SaySentencesWithTheExactValue) {
  EXPECT_EQ(complaint([](SamplingParams& p) { p.top_p = 1.5; }),
            "stream: `top_p` must be in (0, 1], but is 1.5.");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.min_p = 1.0000001; }),
            "stream: `min_p` must be in [0, 1], but is 1.0000001.");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.temperature = kNan; }),
            "stream: `temperature` must be in [0, 100], but is nan.");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.stream_interval = 0; }),
            "stream: `stream_interval` must be in [1, 1048576], but is 0.");
}

TEST(Params, BoundEveryInteger) {
  struct Bounds {
    Change (*set)(int64_t);
    int64_t low, high;
  };
  const Bounds all[] = {
      {[](int64_t x) -> Change { return [x](SamplingParams& p) { p.top_k = x; }; }, 0, INT32_MAX},
      {[](int64_t x) -> Change { return [x](SamplingParams& p) { p.logprobs = x; }; }, 0, 20},
      {[](int64_t x) -> Change { return [x](SamplingParams& p) { p.max_tokens = x; }; }, 0,
       int64_t{1} << 53},
      {[](int64_t x) -> Change { return [x](SamplingParams& p) { p.stream_interval = x; }; }, 1,
       1 << 20},
  };
  for (const Bounds& bounds : all) {
    EXPECT_EQ(complaint(bounds.set(bounds.low)), "");
    EXPECT_EQ(complaint(bounds.set(bounds.high)), "");
    for (const int64_t bad : {bounds.low - 1, bounds.high + 1, INT64_MIN, INT64_MAX}) {
      EXPECT_NE(complaint(bounds.set(bad)), "") << bad;
    }
  }
}

TEST(Params, KeepTokenIdsInsideTheVocabulary) {
  for (const int32_t id : {0, 99}) {
    EXPECT_EQ(complaint([&](SamplingParams& p) { p.stop_token_ids = {id}; }), "");
    EXPECT_EQ(complaint([&](SamplingParams& p) { p.logit_bias = {{id, 1}}; }), "");
  }
  for (const int32_t id : {-1, 100, INT32_MIN, INT32_MAX}) {
    EXPECT_EQ(complaint([&](SamplingParams& p) { p.stop_token_ids = {1, id}; }),
              cat("stream: an item of `stop_token_ids` must be a token id in [0, 100), but is ", id,
                  "."));
    EXPECT_EQ(
        complaint([&](SamplingParams& p) { p.logit_bias = {{1, 1}, {id, 1}}; }),
        cat("stream: a key of `logit_bias` must be a token id in [0, 100), but is ", id, "."));
  }
}

TEST(Params, ABiasIsFiniteOrForbids) {
  const auto with_bias = [](float bias) {
    return complaint([bias](SamplingParams& p) { p.logit_bias = {{7, bias}}; });
  };
  for (const float good : {-INFINITY, -3e38f, -0.0f, 1e-45f, 3e38f}) EXPECT_EQ(with_bias(good), "");
  EXPECT_EQ(with_bias(INFINITY),
            "stream: `logit_bias` must be finite, or -inf to forbid a token, but is inf for token "
            "7.");
  EXPECT_NE(with_bias(NAN), "");
}

TEST(Params, ABiasNamesEachTokenOnce) {
  EXPECT_EQ(complaint([](SamplingParams& p) { p.logit_bias = {{5, 1}, {2, 1}, {5, 2}}; }),
            "stream: `logit_bias` must name each token once, but names token 5 twice.");
}

TEST(Params, ABiasLeavesAToken) {
  const auto forbid = [](int32_t count) -> Change {
    return [count](SamplingParams& p) {
      for (int32_t id = 0; id < count; ++id) p.logit_bias.push_back({id, -INFINITY});
    };
  };
  EXPECT_EQ(complaint(forbid(99)), "");
  EXPECT_EQ(complaint(forbid(100)),
            "stream: `logit_bias` must leave a token to sample, but forbids all 100.");
  EXPECT_NE(complaint(forbid(101)), "");
}

TEST(Params, StopStringsAreBoundedUtf8) {
  const auto with_stop = [](std::vector<std::string> stop) {
    return complaint([&](SamplingParams& p) { p.stop = stop; });
  };
  EXPECT_EQ(with_stop({"\n\n", "größer", "🙂", std::string(kMaxStopBytes, 'x')}), "");
  EXPECT_EQ(with_stop({std::string("a\0b", 3)}), "");
  EXPECT_EQ(with_stop({"a", ""}), "stream: `stop` must not contain an empty string, but does.");
  EXPECT_EQ(with_stop({std::string(kMaxStopBytes + 1, 'x')}),
            "stream: `stop` must hold strings of at most 4096 bytes, but one has 4097.");
  EXPECT_EQ(with_stop({"ab\xED\xA0\x80"}),
            "stream: `stop` must be valid UTF-8, but one string is invalid at byte 2.");
  EXPECT_EQ(with_stop(std::vector<std::string>(kMaxStops, "x")), "");
  EXPECT_EQ(with_stop(std::vector<std::string>(kMaxStops + 1, "x")),
            "stream: `stop` must have at most 64 entries, but has 65.");
}

TEST(Params, ListsOfStopTokensAreBounded) {
  const auto with_ids = [](size_t count) {
    return complaint([=](SamplingParams& p) { p.stop_token_ids.assign(count, 1); });
  };
  EXPECT_EQ(with_ids(kMaxStopTokens), "");
  EXPECT_NE(with_ids(kMaxStopTokens + 1), "");
}

}  // namespace
}  // namespace sinkstream
