// A language model that reveals all it sees: its next token is a hash of all live rows of the
// cache, and every secret among them has a logit of its own. So a row that is lost, stale or
// another sequence's changes the reply, and a leaked secret is named.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "fake_model.h"

namespace sinkstream {

// Ids below kFakeVocab are words; these are secrets, which are never sampled.
inline constexpr int32_t kSecrets = 1024;
inline constexpr int64_t kCanaryVocab = kFakeVocab + kSecrets;
inline bool is_secret(int32_t id) { return id >= kFakeVocab && id < kCanaryVocab; }

class CanaryModel : public RuleModel {
 public:
  CanaryModel() { max_tokens_ = 128; }

  int64_t vocab() const override { return kCanaryVocab; }

  void read(const SequenceCache& cache, int64_t index, std::span<const int32_t> tokens,
            float* logits) override {
    for (const int32_t token : tokens) write(cache, index++, token);
    if (logits != nullptr) write_logits(cache, index - 1, logits);
  }

 private:
  // A token's row holds its id and its index, in every layer.
  static void write(const SequenceCache& cache, int64_t index, int32_t id) {
    for (int64_t layer = 0; layer < cache.layers(); ++layer) {
      const auto low_index = static_cast<int32_t>(index);
      std::memcpy(element(cache, layer, index, 0), &id, sizeof(id));
      std::memcpy(element(cache, layer, index, 1), &low_index, sizeof(low_index));
    }
  }

  // The logits after token `last`, from all that it sees.
  static void write_logits(const SequenceCache& cache, int64_t last, float* logits) {
    std::fill(logits, logits + kCanaryVocab, 0.0f);
    TokenHash hash;
    const Window& window = cache.window();
    for (int64_t layer = 0; layer < cache.layers(); ++layer) {
      const auto look_at = [&](int64_t j) {
        int32_t id, index;
        std::memcpy(&id, element(cache, layer, j, 0), sizeof(id));
        std::memcpy(&index, element(cache, layer, j, 1), sizeof(index));
        hash.add(id);
        hash.add(index);
        if (is_secret(id)) logits[id] = 10;
      };
      for (int64_t j = 0; j < window.sinks && j <= last; ++j) look_at(j);
      for (int64_t j = window.first(last); j <= last; ++j) look_at(j);
    }
    logits[hash.next_token()] = 20;
  }

  static std::byte* element(const SequenceCache& cache, int64_t layer, int64_t index, int64_t dim) {
    const Slot at = cache.slot(layer, index);
    return at.page + kFakeShape.key_element(at.row, dim) * int64_t{sizeof(float)};
  }
};

// The live ones among `length` tokens, by the definition.
inline std::vector<int64_t> live_indices(int64_t length, const Window& window) {
  std::vector<int64_t> live;
  for (int64_t j = 0; j < std::min(window.sinks, length); ++j) live.push_back(j);
  for (int64_t j = std::max(window.sinks, length - window.window); j < length; ++j) {
    live.push_back(j);
  }
  return live;
}

// What the model must return for a plain list of ids.
struct Expected {
  int32_t next = 0;
  std::vector<int32_t> secrets;  // sorted, each once
};

inline Expected expected_after(const std::vector<int32_t>& ids, const Window& window,
                               int64_t layers) {
  Expected expected;
  TokenHash hash;
  const std::vector<int64_t> live = live_indices(static_cast<int64_t>(ids.size()), window);
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const int64_t j : live) {
      const int32_t id = ids[static_cast<size_t>(j)];
      hash.add(id);
      hash.add(static_cast<int32_t>(j));
      if (is_secret(id)) expected.secrets.push_back(id);
    }
  }
  expected.next = hash.next_token();
  std::sort(expected.secrets.begin(), expected.secrets.end());
  expected.secrets.erase(std::unique(expected.secrets.begin(), expected.secrets.end()),
                         expected.secrets.end());
  return expected;
}

}  // namespace sinkstream
