// Samples the tokens of a RuleModel as a GPU does: a step's results are invisible until it is
// awaited, and the next step may be launched before that. It checks its callers, and throws if they
// break a promise of model/step_runner.h.
//
// A step is computed when it is launched. For a caller this is what a GPU does: launches and page
// changes take effect in order, and only results come later.
//
// After a decoding token it appends the guesses that it is given, and samples a run of tokens up to
// the first wrong one. It may guess itself, too: then every third guess is wrong.
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

class FakeRunner : public StepRunner {
 public:
  FakeRunner(RuleModel* model, int64_t seats, const Kernels* kernels, int64_t drafts = 0)
      : model_(*model),
        kernels_(*kernels),
        drafts_(drafts),
        seats_(static_cast<size_t>(seats)),
        scratch_(model->vocab()),
        row_(static_cast<size_t>(model->vocab())) {
    for (Step& step : steps_) {
      step.tokens.reserve(
          static_cast<size_t>(seats * (1 + drafts) + most_scored_rows(model->vocab())));
      step.runs.reserve(static_cast<size_t>(seats));
      const int64_t rows = seats + most_scored_rows(model->vocab());
      step.logits.reserve(static_cast<size_t>(rows * model->vocab()));
    }
    events.reserve(kEvents);
  }

  int64_t most_in_flight() const override { return 2; }
  int64_t drafts() const override { return drafts_; }
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

  void launch(std::span<const StepSpan> spans) override {
    expect(launched_ - awaited_ < 2, "a third step is launched while two are in flight");
    if (model_.before_forward) model_.before_forward(launched_);
    const auto wants_logits = [](const StepSpan& span) {
      return logit_rows(span.wants, span.count) > 0;
    };
    if (launched_ > awaited_ && std::any_of(spans.begin(), spans.end(), wants_logits)) {
      expect(steps_[static_cast<size_t>((launched_ - 1) % kSteps)].logits.empty(),
             "two steps in flight return logits");
    }
    Step& step = steps_[static_cast<size_t>(launched_ % kSteps)];
    step.tokens.clear();
    step.runs.clear();
    step.logits.clear();
    int64_t tokens = 0, scored = 0;
    for (size_t i = 0; i < spans.size(); ++i) {
      for (size_t j = 0; j < i; ++j) expect(spans[i].seat != spans[j].seat, "a seat is shared");
      compute(spans[i], &step);
      tokens += spans[i].count;
      if (spans[i].wants == StepSpan::Wants::kAllLogits) scored += spans[i].count;
    }
    expect(scored <= most_scored_rows(model_.vocab()), scored, " tokens are scored");
    expect(!spans.empty(), "a step without rows is launched");
    model_.count_rows(static_cast<int64_t>(spans.size()), tokens);
    note('L');
    ++launched_;
  }

  StepResult await() override {
    expect(launched_ > awaited_, "a step is awaited, but none is in flight");
    if (model_.gate != nullptr) model_.gate->acquire();
    if (model_.before_results) model_.before_results(awaited_);
    note('A');
    const Step& step = steps_[static_cast<size_t>(awaited_++ % kSteps)];
    ++model_.forwards;
    return {.tokens = step.tokens, .runs = step.runs, .logits = step.logits.data()};
  }

  int64_t launched() const { return launched_; }

  int32_t mute_token = -1;  // after which it finds no token to sample
  std::atomic<bool> has_failed{false};
  std::atomic<int64_t> begun{0};                           // sequences
  std::atomic<int64_t> kept_drafts{0}, dropped_drafts{0};  // as its guesses were right or wrong
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
    std::vector<int32_t> runs;
    std::vector<float> logits;
  };

  template <typename... Parts>
  void expect(bool holds, const Parts&... sentence) {
    if (holds) return;
    has_failed = true;
    throw InternalError(cat("FakeRunner: ", sentence..., "."));
  }

  void note(char event) {
    if (events.size() < kEvents) events.push_back(event);
  }

  void check(const StepSpan& span, const Seat& seat) {
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
    const bool has_guesses = span.tokens != nullptr && span.drafts > 0;
    expect(has_guesses || (span.tokens == nullptr) == seat.has_sampled, "seat ", span.seat,
           seat.has_sampled ? " has sampled its token and is given another one"
                            : " has sampled no token and is given none");
    expect(!has_guesses || !seat.has_sampled || span.tokens[0] == seat.sampled, "seat ", span.seat,
           " has sampled ", seat.sampled, ", not ", has_guesses ? span.tokens[0] : 0);
    expect(span.tokens != nullptr || span.count - span.drafts == 1, "one token was sampled, not ",
           span.count - span.drafts);
    expect(span.drafts == 0 ||
               (span.count == 1 + span.drafts &&
                (has_guesses || (span.drafts <= drafts_ && span.wants == StepSpan::Wants::kToken))),
           "a span of ", span.count, " tokens has ", span.drafts, " drafts");
    expect(span.drafts == 0 || span.in_flight + span.drafts <= kMostRejected, span.drafts,
           " drafts after ", span.in_flight, " tokens in flight may overwrite live keys");
  }

  void compute(const StepSpan& span, Step* step) {
    expect(span.seat >= 0 && span.seat < seats(), "there is no seat ", span.seat);
    Seat& seat = seats_[static_cast<size_t>(span.seat)];
    check(span, seat);
    const int64_t index = span.cache->length() + span.in_flight;
    const bool is_run = span.wants == StepSpan::Wants::kToken;
    const std::span tokens(span.tokens != nullptr ? span.tokens : &seat.sampled,
                           static_cast<size_t>(is_run ? span.count - span.drafts : span.count));
    for (const int32_t token : tokens) {
      expect(token >= 0 && token < model_.vocab(), "there is no token ", token);
    }
    RuleModel::append_to_states(*span.cache, index, tokens);
    if (span.wants == StepSpan::Wants::kAllLogits) {
      for (size_t i = 0; i < tokens.size(); ++i) {
        read(span, index + static_cast<int64_t>(i), tokens.subspan(i, 1));
        step->logits.insert(step->logits.end(), row_.begin(), row_.end());
      }
    } else {
      read(span, index, tokens);
    }
    if (span.tokens != nullptr && span.drafts == 0) seat.sampler->append(tokens);
    // The host knows how many drafts stay where it samples.
    seat.next = span.drafts > 0 && !is_run ? -1 : index + std::ssize(tokens);
    seat.has_sampled = is_run;
    if (seat.has_sampled) sample_run(span, tokens.back(), &seat, step);
    if (span.wants == StepSpan::Wants::kLogits) {
      step->logits.insert(step->logits.end(), row_.begin(), row_.end());
    }
  }

  void read(const StepSpan& span, int64_t index, std::span<const int32_t> tokens) {
    const bool is_wanted = span.wants != StepSpan::Wants::kNothing;
    model_.read(*span.cache, index, tokens, is_wanted ? row_.data() : nullptr);
  }

  // Samples the token after `last`, and while the guess at it is right also the one after the
  // guess. All guesses are written to the cache.
  void sample_run(const StepSpan& span, int32_t last, Seat* seat, Step* step) {
    const size_t before = step->tokens.size();
    const int64_t index = seat->next;
    bool is_right = true;
    for (int64_t i = 0;; ++i) {
      if (is_right) {
        const bool is_mute = last == mute_token;
        step->tokens.push_back(is_mute ? SampledToken{.token = -1} : sample(seat));
      }
      if (i == span.drafts) break;
      const bool guesses_right = (index + i) % 3 != 0;
      const auto wrong = static_cast<int32_t>((seat->sampled + 1) % model_.vocab());
      last = guesses_right ? seat->sampled : wrong;
      if (span.tokens != nullptr) last = span.tokens[1 + i];
      read(span, index + i, {&last, 1});
      const SampledToken& sampled = step->tokens.back();
      is_right = is_right && sampled.is_finite && sampled.token == last;
      seat->next += is_right;
      ++(is_right ? kept_drafts : dropped_drafts);
    }
    step->runs.push_back(static_cast<int32_t>(step->tokens.size() - before));
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
  const int64_t drafts_;
  ThreadPool threads_{1};
  std::vector<Seat> seats_;
  SamplerScratch scratch_;
  std::vector<float> row_;  // [vocab]
  std::array<Step, kSteps> steps_;
  int64_t launched_ = 0;
  int64_t awaited_ = 0;
};

}  // namespace sinkstream
