// Samples the tokens of a RuleModel as a GPU does: a step's results are invisible until it is
// awaited, and the next step may be launched before that. It checks its callers, and throws if they
// break a promise of model/device_sampler.h.
//
// A step is computed when it is launched. For a caller this is what a GPU does: launches and page
// changes take effect in order, and only results come later.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "fake_model.h"
#include "sampling/sampler.h"

namespace sinkstream {

class FakeSampler : public DeviceSampler {
 public:
  FakeSampler(RuleModel* model, int64_t seats, const Kernels* kernels)
      : model_(*model),
        kernels_(*kernels),
        seats_(static_cast<size_t>(seats)),
        scratch_(model->vocab()),
        row_(static_cast<size_t>(model->vocab())) {
    for (Step& step : steps_) {
      step.tokens.reserve(static_cast<size_t>(seats));
      step.logits.reserve(static_cast<size_t>(seats * model->vocab()));
    }
    events.reserve(kEvents);
  }

  int64_t seats() const override { return static_cast<int64_t>(seats_.size()); }

  void begin_sampling(int64_t seat, const SamplingParams& params, const Window& window,
                      std::span<const int32_t> seen) override {
    expect(seat >= 0 && seat < seats(), "sampling begins at seat ", seat);
    Seat& at = seats_[static_cast<size_t>(seat)];
    at = Seat();
    at.sampler.emplace(params, window.sinks, window.window, std::numeric_limits<int64_t>::max());
    at.sampler->append(seen);
    at.seen = static_cast<int64_t>(seen.size());
    ++begun;
  }

  void launch(std::span<const SampleSpan> spans) override {
    expect(launched_ - awaited_ < 2, "a third step is launched while two are in flight");
    if (model_.before_forward) model_.before_forward(launched_);
    const auto wants_logits = [](const SampleSpan& span) {
      return span.wants == SampleSpan::Wants::kLogits;
    };
    if (launched_ > awaited_ && std::any_of(spans.begin(), spans.end(), wants_logits)) {
      expect(steps_[static_cast<size_t>((launched_ - 1) % kSteps)].logits.empty(),
             "two steps in flight return logits");
    }
    Step& step = steps_[static_cast<size_t>(launched_ % kSteps)];
    step.tokens.clear();
    step.logits.clear();
    int64_t tokens = 0;
    for (size_t i = 0; i < spans.size(); ++i) {
      for (size_t j = 0; j < i; ++j) expect(spans[i].seat != spans[j].seat, "a seat is shared");
      compute(spans[i], &step);
      tokens += spans[i].count;
    }
    expect(!spans.empty(), "a step without rows is launched");
    model_.count_rows(static_cast<int64_t>(spans.size()), tokens);
    note('L');
    ++launched_;
  }

  SampledStep await() override {
    expect(launched_ > awaited_, "a step is awaited, but none is in flight");
    if (model_.gate != nullptr) model_.gate->acquire();
    if (model_.before_results) model_.before_results(awaited_);
    note('A');
    const Step& step = steps_[static_cast<size_t>(awaited_++ % kSteps)];
    ++model_.forwards;
    return {.tokens = step.tokens, .logits = step.logits.data()};
  }

  int64_t launched() const { return launched_; }

  int32_t mute_token = -1;  // after which it finds no token to sample
  std::atomic<bool> has_failed{false};
  std::atomic<int64_t> begun{0};  // sequences
  // The first launches, L, and awaits, A, in order. Owned by the engine's thread.
  static constexpr size_t kEvents = 10'000;
  std::string events;

 private:
  struct Seat {
    std::optional<Sampler> sampler;  // none: the seat has not been used
    int64_t seen = 0;
    int64_t next = -1;         // the index after the launched tokens; below 0: none
    bool has_sampled = false;  // after the last launched tokens
    int32_t sampled = 0;
  };
  struct Step {
    std::vector<SampledToken> tokens;
    std::vector<float> logits;
  };

  template <typename... Parts>
  void expect(bool holds, const Parts&... sentence) {
    if (holds) return;
    has_failed = true;
    throw InternalError(cat("FakeSampler: ", sentence..., "."));
  }

  void note(char event) {
    if (events.size() < kEvents) events.push_back(event);
  }

  void check(const SampleSpan& span, const Seat& seat) {
    const int64_t length = span.cache->length(), index = length + span.in_flight;
    expect(seat.sampler.has_value(), "seat ", span.seat, " is used before it has begun");
    expect(span.count >= 1, "a span has ", span.count, " tokens");
    expect(index + span.count <= span.cache->max_length(), "index ", index, " is past the end");
    if (seat.next < 0) {
      expect(span.in_flight == 0 && length >= seat.seen, "seat ", span.seat, " begins ",
             span.in_flight, " ahead of ", length, " tokens, and has seen ", seat.seen);
    } else {
      expect(index == seat.next, "seat ", span.seat, " continues at index ", index, " instead of ",
             seat.next);
    }
    expect((span.tokens == nullptr) == seat.has_sampled, "seat ", span.seat,
           seat.has_sampled ? " has sampled its token and is given another one"
                            : " has sampled no token and is given none");
    expect(span.tokens != nullptr || span.count == 1, "one token was sampled, not ", span.count);
  }

  void compute(const SampleSpan& span, Step* step) {
    expect(span.seat >= 0 && span.seat < seats(), "there is no seat ", span.seat);
    Seat& seat = seats_[static_cast<size_t>(span.seat)];
    check(span, seat);
    const int64_t index = span.cache->length() + span.in_flight;
    const std::span tokens(span.tokens != nullptr ? span.tokens : &seat.sampled,
                           static_cast<size_t>(span.count));
    for (const int32_t token : tokens) {
      expect(token >= 0 && token < model_.vocab(), "there is no token ", token);
    }
    const bool is_wanted = span.wants != SampleSpan::Wants::kNothing;
    model_.read(*span.cache, index, tokens, is_wanted ? row_.data() : nullptr);
    if (span.tokens != nullptr) seat.sampler->append(tokens);
    seat.next = index + span.count;
    seat.has_sampled = span.wants == SampleSpan::Wants::kToken;
    if (seat.has_sampled) {
      const bool is_mute = tokens.back() == mute_token;
      step->tokens.push_back(is_mute ? SampledToken{.token = -1} : sample(&seat));
    }
    if (span.wants == SampleSpan::Wants::kLogits) {
      step->logits.insert(step->logits.end(), row_.begin(), row_.end());
    }
  }

  // As on the host, from the same logits.
  SampledToken sample(Seat* seat) {
    try {
      const Sampled sampled =
          seat->sampler->sample(row_.data(), seat->next, kernels_, Launch{&threads_}, scratch_);
      seat->sampled = sampled.token;
      seat->sampler->append({&seat->sampled, 1});
      return {.token = sampled.token, .logprob = sampled.logprob};
    } catch (const NonFiniteLogits&) {
      return {.is_finite = false};
    } catch (const InvalidArgument&) {
      return {.token = -1};
    }
  }

  static constexpr int64_t kSteps =
      3;  // a step's results stay valid until the second launch after it

  RuleModel& model_;
  const Kernels& kernels_;
  ThreadPool threads_{1};
  std::vector<Seat> seats_;
  SamplerScratch scratch_;
  std::vector<float> row_;  // [vocab]
  std::array<Step, kSteps> steps_;
  int64_t launched_ = 0;
  int64_t awaited_ = 0;
};

}  // namespace sinkstream
