#include "common/digest.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace sinkstream {
namespace {

std::string digest_of(const std::vector<std::byte>& content) {
  Digest digest;
  digest.add(content.data(), static_cast<int64_t>(content.size()));
  return digest.hex();
}

TEST(Digest, ChangesWithEveryBitOfEveryLength) {
  std::set<std::string> seen;
  size_t contents = 0;
  for (const size_t size : {0, 1, 7, 8, 9, 63, 64, 65, 128, 200}) {
    std::vector<std::byte> content(size, std::byte{0x5a});
    seen.insert(digest_of(content));
    ++contents;
    for (size_t bit = 0; bit < size * 8; ++bit) {
      content[bit / 8] ^= std::byte{1} << bit % 8;
      seen.insert(digest_of(content));
      ++contents;
      content[bit / 8] ^= std::byte{1} << bit % 8;
    }
  }
  EXPECT_EQ(seen.size(), contents);
}

TEST(Digest, ChangesWithEveryPairOfBits) {
  std::vector<std::byte> content(256);
  std::set<std::string> seen{digest_of(content)};
  const auto flip = [&](size_t bit) { content[bit / 8] ^= std::byte{1} << bit % 8; };
  size_t contents = 1;
  for (size_t one = 0; one < 256 * 8; one += 5) {
    for (size_t other = one + 1; other < 256 * 8; other += 61) {
      flip(one), flip(other);
      seen.insert(digest_of(content));
      ++contents;
      flip(one), flip(other);
    }
  }
  EXPECT_EQ(seen.size(), contents);
}

TEST(Digest, TellsLengthsOfZerosAndPiecesApart) {
  std::set<std::string> seen;
  for (size_t size = 0; size < 200; ++size) seen.insert(digest_of(std::vector<std::byte>(size)));
  EXPECT_EQ(seen.size(), 200u);
  Digest one, other;
  one.add("ab"), one.add("c");
  other.add("a"), other.add("bc");
  EXPECT_NE(one.hex(), other.hex());
}

TEST(Digest, DoesNotDependOnAlignment) {
  std::vector<std::byte> content(300);
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * 7);
  const std::string expected = digest_of(content);
  for (size_t shift = 1; shift < 16; ++shift) {
    std::vector<std::byte> moved(shift);
    moved.insert(moved.end(), content.begin(), content.end());
    Digest digest;
    digest.add(moved.data() + shift, 300);
    EXPECT_EQ(digest.hex(), expected);
  }
}

// Must never change: saved sessions contain digests.
TEST(Digest, IsWhatItWas) {
  Digest digest;
  digest.add("attention sinks");
  digest.add_number(int64_t{4});
  EXPECT_EQ(digest.hex(), "62fd4fb42cb35b2a0490562fb4327a41");
}

}  // namespace
}  // namespace sinkstream
