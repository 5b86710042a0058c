// Which tokens of a vocabulary may be sampled: one bit for each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

namespace sinkstream {

// [mask_words(vocab)]: token t is bit t % 32 of word t / 32; a set bit allows it.
using TokenMask = std::span<const uint32_t>;

constexpr int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }

// Sets the logits [vocab] of all tokens that the mask does not allow to −infinity.
inline void forbid_unmasked(TokenMask mask, float* logits, int64_t vocab) {
  for (int64_t word = 0; word < mask_words(vocab); ++word) {
    const uint32_t allowed = mask[static_cast<size_t>(word)];
    if (allowed == ~uint32_t{0}) continue;
    const int64_t first = word * 32, end = std::min(first + 32, vocab);
    for (int64_t token = first; token < end; ++token) {
      if ((allowed >> (token - first) & 1) == 0) {
        logits[token] = -std::numeric_limits<float>::infinity();
      }
    }
  }
}

}  // namespace sinkstream
