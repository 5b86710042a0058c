// The steps of a model on the host: a step is one forward pass, which ends before `launch` returns.
// Samples nothing: the engine does that from the logits.
#pragma once

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "device/buffer.h"
#include "model/language_model.h"
#include "model/step_runner.h"

namespace sinkstream {

class HostRunner : public StepRunner {
 public:
  // The model must outlive it. A step has at most `max_spans` spans.
  HostRunner(LanguageModel& model, int64_t max_spans)
      : model_(model),
        logits_(Buffer::sparse(
            (most_scored_rows(model.vocab()) + max_spans) * model.vocab() * int64_t{sizeof(float)},
            "logits")) {
    spans_.reserve(static_cast<size_t>(max_spans));
    std::fill_n(logits_.as<float>(), logits_.bytes() / int64_t{sizeof(float)}, 0.0f);  // resident
  }

  int64_t bytes() const { return logits_.bytes(); }
  int64_t most_in_flight() const override { return 1; }
  int64_t seats() const override { return 0; }
  // Never called: it has no seats.
  void begin_sampling(int64_t, const SamplingParams&, const Window&,
                      std::span<const int32_t>) override {}

  void launch(std::span<const StepSpan> spans) override {
    spans_.clear();
    int64_t rows = 0;
    for (const StepSpan& span : spans) {
      rows += logit_rows(span.wants, span.count);
      SINKSTREAM_CHECK(span.wants != StepSpan::Wants::kToken, "the host's runner does not sample");
      spans_.push_back({.cache = span.cache,
                        .tokens = span.tokens,
                        .count = span.count,
                        .logits = logits_of(span.wants),
                        .in_flight = span.in_flight,
                        .drafts = span.drafts});
    }
    SINKSTREAM_CHECK(rows * model_.vocab() * int64_t{sizeof(float)} <= logits_.bytes(),
                     "a step returns ", rows, " rows of logits, more than there is room for");
    model_.forward(spans_, logits_.as<float>());
  }

  StepResult await() override { return {.tokens = {}, .runs = {}, .logits = logits_.as<float>()}; }

 private:
  static LogitsOf logits_of(StepSpan::Wants wants) {
    if (wants == StepSpan::Wants::kAllLogits) return LogitsOf::kAll;
    return wants == StepSpan::Wants::kLogits ? LogitsOf::kLast : LogitsOf::kNone;
  }

  LanguageModel& model_;
  std::vector<ForwardSpan> spans_;  // of the step being launched
  Buffer logits_;                   // [max_spans + most_scored_rows(), vocab]
};

}  // namespace sinkstream
