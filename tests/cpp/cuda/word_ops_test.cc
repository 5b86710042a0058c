#include "kernels/cuda/word_ops.cuh"

#include <gtest/gtest.h>

namespace sinkstream::cuda {
namespace {

// The two numbers of a word, bit for bit; −0 is not 0.
void expect_numbers(uint32_t word, int first, int second) {
  EXPECT_EQ(word, pack<bf16>(static_cast<float>(first), static_cast<float>(second)))
      << first << ", " << second;
}

TEST(WordOps, MakeFourNumbersOfFourCodes) {
  for (int first = -128; first < 128; ++first) {
    for (int second = -128; second < 128; ++second) {
      const int third = -1 - first, fourth = second / 2;
      const auto byte = [](int code, int at) { return uint32_t(uint8_t(code)) << (8 * at); };
      const uint2 numbers =
          int8_quad(byte(first, 0) | byte(second, 1) | byte(third, 2) | byte(fourth, 3));
      expect_numbers(numbers.x, first, second);
      expect_numbers(numbers.y, third, fourth);
    }
  }
}

}  // namespace
}  // namespace sinkstream::cuda
