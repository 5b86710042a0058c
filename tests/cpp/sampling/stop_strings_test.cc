#include "sampling/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

namespace sinkstream {
namespace {

struct Outcome {
  std::string text;
  bool matched = false;
  bool operator==(const Outcome&) const = default;
};

// The definition: the match that ends first, the longest of those that end there.
Outcome defined(const std::string& text, const std::vector<std::string>& stops) {
  size_t best_end = std::string::npos, best_begin = std::string::npos;
  for (const std::string& stop : stops) {
    const size_t begin = text.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (best_end == std::string::npos || end < best_end ||
        (end == best_end && begin < best_begin)) {
      best_end = end;
      best_begin = begin;
    }
  }
  if (best_end == std::string::npos) return {text, false};
  return {text.substr(0, best_begin), true};
}

Outcome stream(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    if (matcher.feed(piece, &outcome.text)) break;
  }
  matcher.flush(&outcome.text);
  outcome.matched = matcher.matched();
  return outcome;
}

std::vector<std::string> letters(const std::string& text) {
  std::vector<std::string> pieces;
  for (const char letter : text) pieces.emplace_back(1, letter);
  return pieces;
}

TEST(Stop, IsFoundSplitAtEveryPoint) {
  const std::string text = "one two STOP three";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      EXPECT_EQ(
          stream({text.substr(0, first), text.substr(first, second - first), text.substr(second)},
                 {"STOP"}),
          (Outcome{"one two ", true}));
    }
  }
}

TEST(Stop, TellsAtTheVeryByteThatCompletesIt) {
  StopMatcher matcher({"</s>"});
  std::string out;
  for (const char* piece : {"a", "<", "/", "s"}) EXPECT_FALSE(matcher.feed(piece, &out));
  EXPECT_EQ(out, "a");
  EXPECT_EQ(matcher.held(), 3);
  EXPECT_TRUE(matcher.feed(">", &out));
  EXPECT_EQ(out, "a");
}

TEST(Stop, ShowsWhatTurnedOutToBeNone) {
  StopMatcher matcher({"</s>"});
  std::string out;
  EXPECT_FALSE(matcher.feed("a</", &out));
  EXPECT_EQ(out, "a");
  EXPECT_FALSE(matcher.feed("b>", &out));
  EXPECT_EQ(out, "a</b>");
  EXPECT_EQ(matcher.held(), 0);
}

TEST(Stop, HoldsOnlyWhatMayStillBegin) {
  StopMatcher matcher({"aab"});
  std::string out;
  matcher.feed("aaaa", &out);
  EXPECT_EQ(out, "aa");
  EXPECT_EQ(matcher.held(), 2);
  EXPECT_TRUE(matcher.feed("b", &out));
  EXPECT_EQ(out, "aa");
}

TEST(Stop, FlushGivesBackWhatWasHeld) {
  StopMatcher matcher({"</s>"});
  std::string out;
  matcher.feed("a</s", &out);
  matcher.flush(&out);
  EXPECT_EQ(out, "a</s");
  EXPECT_FALSE(matcher.feed(">", &out));  // the text before it no longer counts
}

TEST(Stop, TheMatchThatEndsFirstWins) {
  EXPECT_EQ(stream({"abcd"}, {"abcd", "bc"}), (Outcome{"a", true}));
  EXPECT_EQ(stream({"abcd"}, {"bcd", "abcd", "cd"}), (Outcome{"", true}));
}

TEST(Stop, EmitsNothingAfterAMatch) {
  StopMatcher matcher({"x"});
  std::string out;
  EXPECT_TRUE(matcher.feed("axb", &out));
  EXPECT_TRUE(matcher.feed("c", &out));
  matcher.flush(&out);
  EXPECT_EQ(out, "a");
}

TEST(Stop, WithoutStopStringsTextPassesThrough) {
  EXPECT_EQ(stream({"a", "", "bc"}, {}), (Outcome{"abc", false}));
}

TEST(Stop, NeverCutsInsideACharacter) {
  // é and è share their first byte.
  const std::string text = "caf\xC3\xA8 caf\xC3\xA9!";
  EXPECT_EQ(stream({"caf\xC3\xA8", " caf", "\xC3\xA9", "!"}, {"\xC3\xA9"}),
            (Outcome{"caf\xC3\xA8 caf", true}));
}

// Two letters and short stop strings produce overlaps of every kind.
TEST(Stop, EqualsAPlainSearchForRandomTextsAndSplits) {
  std::mt19937 random(4);
  const auto word = [&](int longest) {
    std::string letters;
    for (uint32_t i = 1 + random() % longest; i > 0; --i) letters += random() % 2 ? 'a' : 'b';
    return letters;
  };
  int matches = 0;
  for (int round = 0; round < 30000; ++round) {
    std::vector<std::string> stops;
    for (uint32_t i = 1 + random() % 4; i > 0; --i) stops.push_back(word(6));
    const std::string text = word(40);
    const Outcome expected = defined(text, stops);
    matches += expected.matched;
    ASSERT_EQ(stream({text}, stops), expected);
    ASSERT_EQ(stream(letters(text), stops), expected);
    std::vector<std::string> pieces;
    for (size_t begin = 0; begin < text.size();) {
      const size_t length = random() % 7;
      pieces.push_back(text.substr(begin, length));
      begin += pieces.back().size();
    }
    ASSERT_EQ(stream(pieces, stops), expected);
  }
  EXPECT_GT(matches, 1000);
  EXPECT_LT(matches, 29500);
}

TEST(Stop, HoldsBoundedMemoryOver100000Pieces) {
  StopMatcher matcher({"aaaaaaab", "abababac"});
  std::string out;
  for (int i = 0; i < 100000; ++i) {
    ASSERT_FALSE(matcher.feed(i % 3 ? "a" : "ab", &out)) << "piece " << i;
    ASSERT_LE(matcher.held(), 7);
    out.clear();
  }
}

// ---- calls --------------------------------------------------------------------------------------

const CallTags kCalls = {.call_begin = "<call>", .thought_begin = "<t>", .thought_end = "</t>"};
const CallTags kBare = {.call_begin = "{\"name\": \"", .is_first = true};

// The result for every split of `text` into three pieces, which must be the same.
Outcome with_calls(const std::string& text, const std::vector<std::string>& stops,
                   const CallTags& calls) {
  std::optional<Outcome> known;
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      StopMatcher matcher(stops, calls);
      Outcome outcome;
      for (const std::string& piece :
           {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        if (matcher.feed(piece, &outcome.text)) break;
      }
      matcher.flush(&outcome.text);
      outcome.matched = matcher.matched();
      EXPECT_EQ(outcome, known.value_or(outcome)) << text << ", cut at " << first << ", " << second;
      known = outcome;
    }
  }
  return *known;
}

TEST(StopInCalls, DoesNotMatch) {
  for (const char* stop : {"}", "\n", "f", "<call>", "call", ">", "<", "<ca", "></call>"}) {
    const std::string text = "I ask. <call>\n{f: {}}></call>";
    EXPECT_EQ(with_calls(text, {stop}, kCalls), (Outcome{text, false})) << stop;
  }
}

TEST(StopInCalls, MatchesInTheTextBefore) {
  EXPECT_EQ(with_calls("Observe: <call>", {"ve:"}, kCalls), (Outcome{"Obser", true}));
  EXPECT_EQ(with_calls("a\n\n<call>", {"\n\n"}, kCalls), (Outcome{"a", true}));
}

TEST(StopInCalls, DoesNotMatchAcrossItsBeginning) {
  EXPECT_EQ(with_calls("a<call>b", {"a<", "a<call>b", "a<call"}, kCalls),
            (Outcome{"a<call>b", false}));
}

TEST(StopInCalls, MatchesInWhatOnlyBeganLikeACall) {
  EXPECT_EQ(with_calls("a <cab", {"<"}, kCalls), (Outcome{"a ", true}));
  EXPECT_EQ(with_calls("a <ca<call>", {"c"}, kCalls), (Outcome{"a <", true}));
  EXPECT_EQ(with_calls("a <ca", {"c", "a"}, kCalls), (Outcome{"", true}));
  EXPECT_EQ(with_calls("b <ca", {"c"}, kCalls), (Outcome{"b <", true}));
}

TEST(StopInCalls, MatchesInThoughtsThatMentionCalls) {
  const std::string thought = " \n<t>Should I <call>? No.</t>";
  EXPECT_EQ(with_calls(thought + "No. END <call>x", {"END"}, kCalls),
            (Outcome{thought + "No. ", true}));
  EXPECT_EQ(with_calls(thought, {"No"}, kCalls), (Outcome{" \n<t>Should I <call>? ", true}));
  const std::string called = thought + "<call>END";
  EXPECT_EQ(with_calls(called, {"END"}, kCalls), (Outcome{called, false}));
  CallTags inside = kCalls;
  inside.is_in_thought = true;
  EXPECT_EQ(with_calls("<call> END", {"END"}, inside), (Outcome{"<call> ", true}));
  EXPECT_EQ(with_calls("a<t></t><call> END", {"END"}, kCalls),
            (Outcome{"a<t></t><call> END", false}));
}

TEST(StopInCalls, KnowsCallsThatOnlyBeginReplies) {
  const std::string call = "\n{\"name\": \"f\"}";
  EXPECT_EQ(with_calls(call, {"f", "{", "\""}, kBare), (Outcome{call, false}));
  EXPECT_EQ(with_calls("a" + call, {"f"}, kBare), (Outcome{"a\n{\"name\": \"", true}));
  EXPECT_EQ(with_calls("{\"names", {"{"}, kBare), (Outcome{"", true}));
  CallTags thinking = kBare;
  thinking.is_in_thought = true;
  thinking.thought_end = "</t>";
  EXPECT_EQ(with_calls("a</t>" + call, {"f"}, thinking), (Outcome{"a</t>" + call, false}));
}

TEST(StopInCalls, KnowsTagsThatAreControlTokens) {
  CallTags tags = {.call_begin = "\xED\xA4\x80",
                   .thought_begin = "\xED\xA0\x80",
                   .thought_end = "\xED\xA0\x81",
                   .markers = {{7, "\xED\xA4\x80"}, {8, "\xED\xA0\x80"}, {9, "\xED\xA0\x81"}}};
  StopMatcher matcher({"END"}, tags);
  std::string out;
  matcher.feed_token(8, &out);
  EXPECT_FALSE(matcher.feed("a", &out));
  matcher.feed_token(7, &out);
  matcher.feed_token(9, &out);
  EXPECT_FALSE(matcher.feed("b EN", &out));
  EXPECT_EQ(out, "ab ");
  matcher.feed_token(7, &out);
  EXPECT_EQ(out, "ab EN");
  EXPECT_FALSE(matcher.feed("D END", &out));
  EXPECT_FALSE(matcher.flush(&out));
  EXPECT_EQ(out, "ab END END");

  StopMatcher without({"END"}, tags);
  without.feed_token(8, &out);
  without.feed_token(7, &out);
  EXPECT_TRUE(without.feed("END", &out));
}

// The definition: stop strings are looked for in the text before the first call.
TEST(StopInCalls, EqualsASearchInTheTextForRandomTextsAndSplits) {
  std::mt19937 random(5);
  const auto word = [&](uint32_t longest) {
    std::string letters;
    for (uint32_t i = 1 + random() % longest; i > 0; --i) letters += random() % 2 ? 'a' : 'b';
    return letters;
  };
  int matches = 0, calls = 0;
  for (int round = 0; round < 30000; ++round) {
    const CallTags tags = {.call_begin = word(6) + "a"};
    std::vector<std::string> stops;
    for (uint32_t i = 1 + random() % 3; i > 0; --i) stops.push_back(word(6));
    const std::string text = word(40);
    const size_t begin = std::min(text.find(tags.call_begin), text.size());
    Outcome expected = defined(text.substr(0, begin), stops);
    if (!expected.matched) expected.text = text;
    matches += expected.matched;
    calls += !expected.matched && begin < text.size();
    StopMatcher matcher(stops, tags);
    Outcome outcome;
    for (size_t at = 0; at < text.size();) {
      const size_t length = random() % 7;
      if (matcher.feed(std::string_view(text).substr(at, length), &outcome.text)) break;
      ASSERT_LE(matcher.held(), 14);
      at += std::min(length, text.size() - at);
    }
    matcher.flush(&outcome.text);
    outcome.matched = matcher.matched();
    ASSERT_EQ(outcome, expected) << text << " with calls " << tags.call_begin;
  }
  EXPECT_GT(matches, 1000);
  EXPECT_GT(calls, 1000);
}

}  // namespace
}  // namespace sinkstream
