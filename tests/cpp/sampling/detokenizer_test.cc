#include "sampling/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

namespace sinkstream {
namespace {

// Ids 0 to 255 are single bytes; 256 is special.
TokenTable byte_table(bool strip_leading_space = false) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.emplace_back("<|end|>");
  std::vector<uint8_t> special(257);
  special[256] = 1;
  return {tokens, special, strip_leading_space};
}

std::string decode(const TokenTable& table, const std::vector<int32_t>& ids) {
  Detokenizer detokenizer(&table);
  std::string out;
  for (const int32_t id : ids) detokenizer.push(id, &out);
  detokenizer.flush(&out);
  return out;
}

TEST(TokenTable, GivesEachTokensBytes) {
  const std::vector<std::string> tokens = {"a", "", "\xE2\x82", "<s>"};
  const std::vector<uint8_t> special = {0, 0, 0, 1};
  const TokenTable table(tokens, special, false);
  EXPECT_EQ(table.size(), 4);
  for (int32_t id = 0; id < 4; ++id) EXPECT_EQ(table.bytes(id), tokens[id]);
  EXPECT_TRUE(table.is_special(3));
  EXPECT_FALSE(table.is_special(0));
  EXPECT_EQ(table.text(3), "");
  EXPECT_EQ(table.text(0), "a");
}

TEST(TokenTable, HasNothingForIdsBeyondIt) {
  const TokenTable table = byte_table();
  for (const int32_t id : {-1, 257, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(table.bytes(id), "");
    EXPECT_FALSE(table.is_special(id));
  }
}

TEST(Detokenizer, JoinsACharacterOverTokens) {
  const TokenTable table = byte_table();
  Detokenizer detokenizer(&table);
  std::string out;
  for (const int32_t id : {0xF0, 0x9F, 0x99}) detokenizer.push(id, &out);
  EXPECT_EQ(out, "");
  detokenizer.push(0x82, &out);
  EXPECT_EQ(out, "🙂");
}

TEST(Detokenizer, SpecialTokensHaveNoTextAndBreakNoCharacter) {
  const TokenTable table = byte_table();
  EXPECT_EQ(decode(table, {256, 0xE2, 0x82, 256, 0xAC, 256}), "€");
}

TEST(Detokenizer, StripsOneLeadingSpaceOfTheText) {
  const TokenTable table = byte_table(true);
  EXPECT_EQ(decode(table, {' ', ' ', 'a', ' '}), " a ");
  EXPECT_EQ(decode(table, {256, ' ', 'a'}), "a");  // a special token has no text
  EXPECT_EQ(decode(table, {'a', ' '}), "a ");
  EXPECT_EQ(decode(byte_table(false), {' ', 'a'}), " a");
}

TEST(Detokenizer, KeepsTheLeadingSpaceOfATextThatContinues) {
  const TokenTable table = byte_table(/*strip_leading_space=*/true);
  Detokenizer detokenizer(&table, /*continues_text=*/true);
  std::string out;
  for (const int32_t id : {256, int{' '}, int{'a'}}) detokenizer.push(id, &out);
  EXPECT_EQ(out, " a");
}

// The text of `reply` after a text of `prompt`.
std::string decode_after(const TokenTable& table, const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& reply) {
  Detokenizer detokenizer(&table);
  detokenizer.follow(prompt);
  std::string out;
  for (const int32_t id : reply) detokenizer.push(id, &out);
  detokenizer.flush(&out);
  return out;
}

TEST(Detokenizer, CompletesTheCharacterThatAnEarlierTextBegins) {
  const TokenTable table = byte_table();
  EXPECT_EQ(decode_after(table, {'a', 0xC3}, {0xA9, 'b'}), "\xC3\xA9\x62");
  EXPECT_EQ(decode_after(table, {0xF0}, {0x9F, 256, 0x99, 0x82}), "🙂");
  EXPECT_EQ(decode_after(table, {0xF0, 0x9F, 256, 0x99, 256}, {0x82}), "🙂");
  EXPECT_EQ(decode_after(table, {'a'}, {0xA9, 'b'}), "\xEF\xBF\xBD\x62");
}

TEST(Detokenizer, ShowsNothingForACharacterOfAnEarlierTextThatStaysIncomplete) {
  const TokenTable table = byte_table();
  EXPECT_EQ(decode_after(table, {0xE2}, {'b'}), "b");
  EXPECT_EQ(decode_after(table, {0xE2}, {0x82, 'b'}), "b");
  EXPECT_EQ(decode_after(table, {0xE2}, {0x82}), "");
  EXPECT_EQ(decode_after(table, {0xE2}, {}), "");
  EXPECT_EQ(decode_after(table, {0xE2}, {0xC3, 'b'}), "\xEF\xBF\xBD\x62");
  EXPECT_EQ(decode_after(table, {0xE2}, {0x82, 0xAC, 0xE2}), "€\xEF\xBF\xBD");
}

TEST(Detokenizer, FlushEndsAnIncompleteCharacter) {
  EXPECT_EQ(decode(byte_table(), {'a', 0xE2, 0x82}), "a\xEF\xBF\xBD");
}

size_t text_bytes(const TokenTable& table, const std::vector<int32_t>& ids) {
  size_t bytes = 0;
  for (const int32_t id : ids) bytes += table.text(id).size();
  return bytes;
}

// All of the two texts without the first one's complete characters; and without the replacement of
// its incomplete one, unless the second text completes that.
TEST(Detokenizer, FollowsAnEarlierTextWhereverItEnds) {
  std::mt19937 random(5);
  const TokenTable table = byte_table();
  const std::string replacement = "\xEF\xBF\xBD";
  int completed = 0, incomplete = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<int32_t> ids;
    for (const char c : std::string(random() % 2 ? "aé€" : "🙂€é\xEF\xBF\xBD")) {
      if (random() % 12 != 0) ids.push_back(static_cast<uint8_t>(c));
      if (random() % 9 == 0) ids.push_back(256);
    }
    const auto cut = ids.begin() + random() % (ids.size() + 1);
    const std::vector<int32_t> prompt(ids.begin(), cut), reply(cut, ids.end());
    Utf8Assembler before;
    std::string shown, bytes;
    for (const int32_t id : prompt) before.push(table.text(id), &shown);
    const int held = before.held();
    std::string expected = decode(table, ids).substr(shown.size());
    for (const int32_t id : ids) bytes += table.text(id);
    const std::string own = bytes.substr(bytes.size() - text_bytes(table, reply) - held);
    if (held > 0 && expected.starts_with(replacement) && !own.starts_with(replacement)) {
      expected.erase(0, replacement.size());
      ++incomplete;
    } else if (held > 0) {
      ++completed;
    }
    ASSERT_EQ(decode_after(table, prompt, reply), expected) << "round " << round;
  }
  EXPECT_GT(completed, 1000);
  EXPECT_GT(incomplete, 1000);
}

// Random vocabularies of pieces of up to five bytes, so that characters are cut in every way.
TEST(Detokenizer, PiecesJoinedEqualDecodingAllAtOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> tokens;
    std::vector<uint8_t> special;
    for (int id = 0; id < 50; ++id) {
      std::string token;
      for (uint32_t i = random() % 6; i > 0; --i) {
        token += static_cast<char>(random() % 2 ? 0x80 + random() % 0x80 : random());
      }
      tokens.push_back(token);
      special.push_back(random() % 10 == 0);
    }
    const TokenTable table(tokens, special, false);
    std::string all, streamed;
    Detokenizer detokenizer(&table);
    for (int i = 0; i < 500; ++i) {
      const int32_t id = static_cast<int32_t>(random() % 52);
      all += table.text(id);
      std::string piece;
      detokenizer.push(id, &piece);
      ASSERT_EQ(find_invalid_utf8(piece), std::string::npos);
      streamed += piece;
    }
    detokenizer.flush(&streamed);
    std::string at_once;
    Utf8Assembler assembler;
    assembler.push(all, &at_once);
    assembler.flush(&at_once);
    ASSERT_EQ(streamed, at_once);
  }
}

}  // namespace
}  // namespace sinkstream
