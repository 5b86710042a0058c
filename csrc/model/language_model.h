// What the engine needs from a model: append tokens to caches and compute logits. Three
// implementations: Decoder, CudaDecoder, and the scripted FakeModel of the tests.
#pragma once

#include <cstdint>
#include <span>

#include "cache/sequence_cache.h"

namespace sinkstream {

class StepRunner;

// Which of a span's tokens get logits.
enum class LogitsOf : uint8_t { kNone, kLast, kAll };

// Consecutive tokens of one sequence.
struct ForwardSpan {
  SequenceCache* cache = nullptr;   // its tokens' indices start at cache->length() + in_flight
  const int32_t* tokens = nullptr;  // [count], each in [0, vocab)
  int64_t count = 0;                // at least 1
  LogitsOf logits = LogitsOf::kNone;
  int64_t in_flight = 0;  // tokens that were launched but are not yet in cache->length():
                          // step_runner.h
  int64_t drafts = 0;     // of `count`, the last, which need not stay
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual int64_t vocab() const = 0;
  // The maximum number of tokens in one forward pass, over all spans.
  virtual int64_t max_tokens() const = 0;

  // Appends each span's tokens to its cache and writes the requested rows of `logits`
  // [requested rows, vocab], span by span. Leaves the caches' lengths to the caller: Note [Who
  // moves a length] in step_runner.h. A span's result does not depend on the other spans. One
  // caller at a time. If it throws, the caches' contents are undefined.
  virtual void forward(std::span<const ForwardSpan> spans, float* logits) = 0;

  // Runs the engine's steps; null: a step is one forward pass (host_runner.h).
  virtual StepRunner* step_runner() { return nullptr; }
};

// A forward pass whose tokens all stay.
inline void forward_and_advance(LanguageModel& model, std::span<const ForwardSpan> spans,
                                float* logits) {
  model.forward(spans, logits);
  for (const ForwardSpan& span : spans) span.cache->advance(span.count);
}

}  // namespace sinkstream
