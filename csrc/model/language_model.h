// What the engine needs of a model: append tokens to caches, give logits.
// Two implementations: Decoder, and the scripted FakeModel of the tests.
#pragma once

#include <cstdint>
#include <span>

#include "cache/sequence_cache.h"

namespace sinkstream {

class DeviceSampler;

// Which of a span's tokens want logits.
enum class LogitsOf : uint8_t { kNone, kLast, kAll };

// Consecutive tokens of one sequence.
struct ForwardSpan {
  SequenceCache* cache = nullptr;   // its tokens' indices start at cache->length() + in_flight
  const int32_t* tokens = nullptr;  // [count], each in [0, vocab)
  int64_t count = 0;                // at least 1
  LogitsOf logits = LogitsOf::kNone;
  int64_t in_flight = 0;  // tokens of its sequence that are computed but not counted in the cache's
                          // length yet: device_sampler.h
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual int64_t vocab() const = 0;
  // The most tokens of one forward, all spans together.
  virtual int64_t max_tokens() const = 0;

  // Appends each span's tokens to its cache and writes the wanted rows, span after span, to
  // `logits` [wanted rows, vocab]. A span's result does not depend on the other spans. One caller
  // at a time. If it throws, the caches' contents are undefined and their lengths unchanged.
  virtual void forward(std::span<const ForwardSpan> spans, float* logits) = 0;

  // Where it draws tokens itself; null: the engine draws them from its logits.
  virtual DeviceSampler* device_sampler() { return nullptr; }
};

}  // namespace sinkstream
