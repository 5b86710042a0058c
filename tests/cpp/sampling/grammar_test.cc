#include "sampling/grammar.h"

#include <gtest/gtest.h>

#include "common/errors.h"
#include "fake_grammar.h"

namespace sinkstream {
namespace {

constexpr int64_t kVocab = 70;

// Token 0 is a control token and 1 ends a reply; ids from 68 on have no bytes.
std::shared_ptr<GrammarVocabulary> vocabulary(std::vector<int32_t> ends = {1},
                                              int64_t vocab = kVocab) {
  std::vector<std::string> tokens;
  std::vector<uint8_t> special;
  for (int id = 0; id < 68; ++id) {
    tokens.push_back("t" + std::to_string(id));
    special.push_back(id < 2);
  }
  const TokenTable table(tokens, special, false);
  return std::make_shared<GrammarVocabulary>(fake_grammar_library(), table, vocab, ends);
}

Grammar grammar(const std::string& source) { return Grammar(vocabulary(), {"regex", source}); }

std::vector<int32_t> ids_of(TokenMask mask) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < kVocab; ++id) {
    if (mask[static_cast<size_t>(id / 32)] >> id % 32 & 1) ids.push_back(id);
  }
  return ids;
}

// The sentence of the InvalidArgument that `call` throws, and the option that it names.
template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing is thrown";
}

TEST(GrammarVocabulary, MarksControlTokensAndPassesEveryEndToken) {
  const auto made = vocabulary({1, 40, 41});
  const GrammarLibrary::Tokenizer& tokenizer = *made->tokenizer();
  EXPECT_EQ(tokenizer.ends, (std::vector<uint32_t>{1, 40, 41}));
  ASSERT_EQ(tokenizer.tokens.size(), static_cast<size_t>(kVocab));
  EXPECT_EQ(tokenizer.tokens[0], "\xfft0") << "no text of a grammar matches it";
  EXPECT_EQ(tokenizer.tokens[1], "\xfft1");
  EXPECT_EQ(tokenizer.tokens[2], "t2");
  EXPECT_EQ(tokenizer.tokens[69], "") << "beyond the tokenizer's";
  EXPECT_TRUE(vocabulary({})->tokenizer()->ends.empty());
}

TEST(GrammarVocabulary, ShowsWhyTheLibraryRefusesIt) {
  EXPECT_EQ(
      refusal([] { vocabulary({}, 3); }),
      "stream: a grammar needs a vocabulary that llguidance can use, but llguidance refuses this "
      "one: three is no vocabulary.");
}

TEST(Grammar, AllowsWhatTheLibraryAllowsUntilTheReplyIsComplete) {
  Grammar made = grammar("5 33|69|7 $");
  EXPECT_EQ(ids_of(made.allowed()), (std::vector<int32_t>{5, 33}));
  made.accept(33);
  EXPECT_EQ(ids_of(made.allowed()), std::vector<int32_t>{69});
  made.accept(69);
  EXPECT_FALSE(made.is_complete());
  EXPECT_EQ(ids_of(made.allowed()), (std::vector<int32_t>{1, 7})) << "it may end here";
  made.accept(1);
  EXPECT_TRUE(made.is_complete());
}

TEST(Grammar, AMaskThatWasPreparedIsTheOneThatIsUsed) {
  Grammar made = grammar("5|6|7");
  made.accept(5);
  made.prepare();
  made.prepare();
  EXPECT_EQ(ids_of(made.allowed()), std::vector<int32_t>{6});
}

TEST(Grammar, EachOptionHasItsKind) {
  const auto kept = vocabulary();
  for (const auto& [option, kind] : std::map<std::string, std::string>{
           {"schema", "json_schema"}, {"regex", "regex"}, {"grammar", "lark"}}) {
    std::string found;
    GrammarLibrary library = fake_grammar_library();
    static std::string* seen = nullptr;
    seen = &found;
    library.new_matcher = [](const GrammarLibrary::MatcherInit* init, const char* given,
                             const char* source) {
      *seen = given;
      return fake_grammar_library().new_matcher(init, given, source);
    };
    const TokenTable table(std::vector<std::string>(8, "a"), std::vector<uint8_t>(8, 0), false);
    const auto made =
        std::make_shared<GrammarVocabulary>(library, table, 8, std::vector<int32_t>{});
    Grammar(made, {option, "*"});
    EXPECT_EQ(found, kind);
  }
}

TEST(Grammar, NamesTheOptionAndTheReason) {
  EXPECT_EQ(refusal([] { grammar("invalid"); }),
            "stream: `regex` must be valid for llguidance, but is not: unclosed group.");
  EXPECT_EQ(refusal([] { grammar(std::string(65537, 'a')); }),
            "stream: `regex` must have at most 65536 bytes, but has 65537.");
  EXPECT_EQ(refusal([] { grammar(std::string("a\0b", 3)); }),
            "stream: `regex` must not contain a zero byte, but does.");
  EXPECT_EQ(refusal([] { grammar("broken"); }),
            "stream: `regex` must be within the limits of llguidance, but llguidance failed: too "
            "many items. Other streams continue.");
  EXPECT_EQ(
      refusal([] { grammar("nothing"); }),
      "stream: `regex` must allow some token of the model's vocabulary to come next, but allows "
      "none.");
  Grammar stuck = grammar("stuck");
  EXPECT_EQ(refusal([&] { stuck.accept(5); }),
            "stream: `regex` must be within the limits of llguidance, but llguidance failed: no "
            "such token. Other streams continue.");
}

TEST(Grammar, ACopyGoesItsOwnWay) {
  const auto compiled = compile_grammar(vocabulary(), {"regex", "5 6|7|8"});
  const std::unique_ptr<Grammar> one = compiled->begin(), other = compiled->begin();
  one->accept(5);
  EXPECT_EQ(ids_of(one->allowed()), std::vector<int32_t>{7});
  EXPECT_EQ(ids_of(one->clone()->allowed()), std::vector<int32_t>{7});
  EXPECT_EQ(ids_of(other->allowed()), (std::vector<int32_t>{5, 6}));
}

TEST(Grammar, FreesItsMatcherHoweverItEnds) {
  const int before = GrammarLibrary::Matcher::alive;
  grammar("5");
  for (const char* source : {"invalid", "broken", "nothing"}) refusal([&] { grammar(source); });
  EXPECT_EQ(GrammarLibrary::Matcher::alive, before);
}

TEST(CompileGrammar, RefusesOneThatTakesTooLongAndGoesOnWithOthers) {
  using std::chrono::milliseconds;
  const auto kept = vocabulary();
  const auto compile = [&](const char* source, int timeout) {
    return compile_grammar(kept, {"schema", source}, milliseconds(timeout));
  };
  const std::string sentence =
      "stream: `schema` must be simple enough to compile within 0.01 s, but is not. Use a simpler "
      "one.";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(refusal([&] { compile("slow", 10); }), sentence);
  EXPECT_NE(compile("5", 5000), nullptr) << "three compile on, and a fourth may";
  EXPECT_EQ(refusal([&] { compile("slow", 10); }), sentence);
  EXPECT_THROW(compile("5", 10), CapacityError) << "four compile on";
  EXPECT_NE(compile("5", 60'000), nullptr) << "once one of the four has ended";
  EXPECT_THROW(compile("invalid", 5000), InvalidArgument);
  while (GrammarLibrary::Matcher::alive > 0) std::this_thread::sleep_for(milliseconds(1));
}

TEST(CompileGrammar, DoesNotCountTheWaitForAProcessor) {
  const std::chrono::milliseconds timeout(20);
  EXPECT_NE(compile_grammar(vocabulary(), {"schema", "waits 5"}, timeout), nullptr);
}

}  // namespace
}  // namespace sinkstream
