#include "engine/reply_text.h"

#include <gtest/gtest.h>

namespace sinkstream {
namespace {

const TokenTable& table() {
  static const TokenTable table(
      std::vector<std::string>{"ab", "c", "\xC3", "\xA9", "<eos>", "\xEF\xBF\xBD"},
      std::vector<uint8_t>{0, 0, 0, 0, 1, 0}, /*strip_leading_space=*/false);
  return table;
}

TEST(ReplyText, JoinsCharactersOverTokens) {
  ReplyText text(&table(), {});
  std::string out;
  for (const int32_t id : {0, 2, 3, 4, 1}) EXPECT_FALSE(text.push(id, &out));
  EXPECT_EQ(out,
            "ab\xC3\xA9"
            "c");
}

TEST(ReplyText, HoldsBackWhatMayBeginAStopStringAndShowsItAtTheEnd) {
  ReplyText text(&table(), {"abX"});
  std::string out;
  EXPECT_FALSE(text.push(0, &out));
  EXPECT_EQ(out, "");
  EXPECT_FALSE(text.flush(&out));
  EXPECT_EQ(out, "ab");
}

TEST(ReplyText, CutsAtAStopStringOverTokens) {
  ReplyText text(&table(), {"bc"});
  std::string out;
  EXPECT_FALSE(text.push(0, &out));
  EXPECT_TRUE(text.push(1, &out));
  EXPECT_FALSE(text.flush(&out));
  EXPECT_EQ(out, "a");
}

TEST(ReplyText, ReplacesACharacterThatStaysIncomplete) {
  ReplyText text(&table(), {});
  std::string out;
  text.push(2, &out);
  EXPECT_FALSE(text.flush(&out));
  EXPECT_EQ(out, "\xEF\xBF\xBD");
}

TEST(ReplyText, FindsAStopStringThatTheEndCompletes) {
  ReplyText text(&table(), {"\xEF\xBF\xBD"});
  std::string out;
  EXPECT_FALSE(text.push(2, &out));
  EXPECT_TRUE(text.flush(&out));
  EXPECT_EQ(out, "");
}

TEST(ReplyText, CompletesAStopStringWithTheCharacterThatThePromptBegins) {
  ReplyText text(&table(), {"\xC3\xA9"});
  const std::vector<int32_t> prompt = {0, 2, 4};
  text.follow(prompt);
  std::string out;
  EXPECT_TRUE(text.push(3, &out));
  EXPECT_EQ(out, "");
}

TEST(ReplyText, IsEmptyWithoutATokenizer) {
  ReplyText text(nullptr, {});
  std::string out;
  EXPECT_FALSE(text.push(0, &out));
  EXPECT_FALSE(text.flush(&out));
  EXPECT_EQ(out, "");
}

}  // namespace
}  // namespace sinkstream
