#include "sampling/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace sinkstream {
namespace {

const std::string kBad = "\xEF\xBF\xBD";  // U+FFFD

std::string whole(const std::string& bytes) {
  Utf8Assembler assembler;
  std::string out;
  assembler.push(bytes, &out);
  assembler.flush(&out);
  return out;
}

// The definition, written from Unicode's table 3-7: takes the longest well-formed prefix of a
// character at each position.
std::string defined(const std::string& bytes) {
  const auto at = [&](size_t i) {
    return i < bytes.size() ? static_cast<uint8_t>(bytes[i]) : uint8_t{0};
  };
  const auto between = [&](size_t i, uint8_t low, uint8_t high) {
    return at(i) >= low && at(i) <= high;
  };
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    size_t length = 0, good = 1;  // of the character that begins here, and of its valid part
    if (between(i, 0, 0x7F)) {
      length = 1;
    } else if (between(i, 0xC2, 0xDF)) {
      length = 2;
      good += between(i + 1, 0x80, 0xBF);
    } else if (between(i, 0xE0, 0xEF)) {
      length = 3;
      const bool second = at(i) == 0xE0   ? between(i + 1, 0xA0, 0xBF)
                          : at(i) == 0xED ? between(i + 1, 0x80, 0x9F)
                                          : between(i + 1, 0x80, 0xBF);
      if (second) good += 1 + between(i + 2, 0x80, 0xBF);
    } else if (between(i, 0xF0, 0xF4)) {
      length = 4;
      const bool second = at(i) == 0xF0   ? between(i + 1, 0x90, 0xBF)
                          : at(i) == 0xF4 ? between(i + 1, 0x80, 0x8F)
                                          : between(i + 1, 0x80, 0xBF);
      if (second) {
        good += 1;
        if (between(i + 2, 0x80, 0xBF)) good += 1 + between(i + 3, 0x80, 0xBF);
      }
    }
    out += good == length ? bytes.substr(i, length) : kBad;
    i += good;
  }
  return out;
}

// Bytes that often nearly form characters.
std::string random_bytes(std::mt19937* random, int length) {
  static const uint8_t kEdges[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                   0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                                   0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  std::string bytes;
  for (int i = 0; i < length; ++i) {
    bytes += static_cast<char>((*random)() % 4 == 0 ? (*random)()
                                                    : kEdges[(*random)() % std::size(kEdges)]);
  }
  return bytes;
}

TEST(Utf8, PassesValidTextThrough) {
  const std::string text =
      "plain, größer, Ω, 한국어, ไทย, 🙂👩‍👩‍👧, \xF4\x8F\xBF\xBF";
  EXPECT_EQ(whole(text), text);
  EXPECT_EQ(find_invalid_utf8(text), std::string::npos);
}

// What bytes.decode("utf-8", errors="replace") gives in Python.
TEST(Utf8, ReplacesEachMaximalPart) {
  EXPECT_EQ(whole("\x80"), kBad);
  EXPECT_EQ(whole("a\xC3"), "a" + kBad);
  EXPECT_EQ(whole("\xC3\x28"), kBad + "(");
  EXPECT_EQ(whole("\xC0\xAF"), kBad + kBad);             // overlong "/"
  EXPECT_EQ(whole("\xE0\x80\xAF"), kBad + kBad + kBad);  // overlong too
  EXPECT_EQ(whole("\xED\xA0\x80"), kBad + kBad + kBad);  // a surrogate
  EXPECT_EQ(whole("\xF0\x9F\x99"), kBad);                // three of an emoji's four bytes
  EXPECT_EQ(whole("\xF0\x9F\x99z"), kBad + "z");
  EXPECT_EQ(whole("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // beyond U+10FFFF
  EXPECT_EQ(whole("\xE2\x82\xE2\x82\xAC"), kBad + "€");
}

TEST(Utf8, EqualsTheDefinitionForRandomBytesAtEverySplit) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const std::string bytes = random_bytes(&random, 1 + round % 12);
    const std::string expected = defined(bytes);
    ASSERT_EQ(whole(bytes), expected);
    for (size_t first = 0; first <= bytes.size(); ++first) {
      for (size_t second = first; second <= bytes.size(); ++second) {
        Utf8Assembler assembler;
        std::string out;
        for (const auto& piece :
             {bytes.substr(0, first), bytes.substr(first, second - first), bytes.substr(second)}) {
          assembler.push(piece, &out);
          ASSERT_EQ(find_invalid_utf8(out), std::string::npos);
          ASSERT_LE(assembler.held(), 3);
        }
        assembler.flush(&out);
        ASSERT_EQ(out, expected) << "cut at " << first << " and " << second;
      }
    }
  }
}

TEST(Utf8, EqualsTheDefinitionForAllPairsAndTriplesOfEdges) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      for (const int c : {0x00, 0x7F, 0x80, 0xBF, 0xC2, 0xE1, 0xF1}) {
        const std::string bytes = {static_cast<char>(a), static_cast<char>(b),
                                   static_cast<char>(c)};
        ASSERT_EQ(whole(bytes), defined(bytes)) << std::hex << a << " " << b << " " << c;
      }
    }
  }
}

TEST(Utf8, HoldsNothingBackThatIsCertain) {
  Utf8Assembler assembler;
  std::string out;
  assembler.push("ab\xE2\x82", &out);
  EXPECT_EQ(out, "ab");
  EXPECT_EQ(assembler.held(), 2);
  assembler.push("\xAC", &out);
  EXPECT_EQ(out, "ab€");
  EXPECT_EQ(assembler.held(), 0);
}

TEST(Utf8, IsReadyForAnotherTextAfterFlush) {
  Utf8Assembler assembler;
  std::string out;
  assembler.push("\xE2\x82", &out);
  assembler.flush(&out);
  assembler.push("\xAC", &out);
  assembler.flush(&out);
  EXPECT_EQ(out, kBad + kBad);
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::string::npos);
  EXPECT_EQ(find_invalid_utf8("é\x80"), 2u);
  EXPECT_EQ(find_invalid_utf8("abc\xE2\x82"), 3u);
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    const std::string bytes = random_bytes(&random, 1 + round % 8);
    ASSERT_EQ(find_invalid_utf8(bytes) == std::string::npos, defined(bytes) == bytes);
  }
}

}  // namespace
}  // namespace sinkstream
