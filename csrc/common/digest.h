// A fast 128-bit digest, about as fast as memory is read. It protects against accidents, not
// malice: two contents with the same digest are easy to construct.
//
// Note: [Digest]
// Each of eight 64-bit lanes takes every eighth word. A lane's step (multiply by an odd number,
// add, rotate) is invertible, and so is folding one lane into a result. So contents of equal length
// that differ in a single word always have different digests. Any other two contents collide with a
// probability of about 2^-64.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace sinkstream {

class Digest {
 public:
  // Adds a piece of content, at any alignment. Where pieces begin and end counts as content.
  void add(const std::byte* bytes, int64_t count) {
    int64_t at = 0;
    for (; at + kBlock <= count; at += kBlock) take(bytes + at);
    std::array<std::byte, kBlock> rest{};
    if (at < count) std::memcpy(rest.data(), bytes + at, count - at);
    take(rest.data());  // padded with zeros; the length tells them apart from content
    step(&lanes_[0], static_cast<uint64_t>(count));
  }
  void add(std::string_view text) {
    add(reinterpret_cast<const std::byte*>(text.data()), static_cast<int64_t>(text.size()));
  }
  // Adds the bits of a number.
  template <typename Number>
  void add_number(Number number) {
    static_assert(sizeof(Number) <= sizeof(uint64_t));
    uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof(number));
    step(&lanes_[0], bits);
  }

  // 32 hexadecimal digits.
  std::string hex() const {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (uint64_t result : {kOdd[0], kOdd[1]}) {
      for (const uint64_t lane : lanes_) {
        step(&result, lane);
        result ^= result >> 29;
      }
      for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[result >> shift & 15];
    }
    return text;
  }

 private:
  static constexpr int64_t kLanes = 8;
  static constexpr int64_t kBlock = kLanes * sizeof(uint64_t);
  // Digits of the square roots of 2 and 3, made odd.
  static constexpr uint64_t kOdd[] = {0x6a09e667f3bcc909, 0xbb67ae8584caa73b};

  static void step(uint64_t* lane, uint64_t word) {
    *lane = std::rotl(*lane + word * kOdd[0], 31) * kOdd[1];
  }

  void take(const std::byte* block) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), block, kBlock);
    for (int64_t i = 0; i < kLanes; ++i) step(&lanes_[i], words[i]);
  }

  std::array<uint64_t, kLanes> lanes_{1, 2, 3, 4, 5, 6, 7, 8};
};

}  // namespace sinkstream
