// Draws the tokens of a RuleModel as a card does: what a step gives is seen by nobody before it is
// awaited, and the next step may be launched before that. It looks by itself at what it is told,
// and throws where that breaks a promise of model/token_drawer.h.
//
// A step is computed when it is launched. That is what a card does as far as anybody can see:
// launches and changes of pages take effect in their order, and only results come later.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "fake_model.h"
#include "sampling/sampler.h"

namespace sinkstream {

class FakeDrawer : public TokenDrawer {
 public:
  FakeDrawer(RuleModel* model, int64_t places, const Kernels* kernels)
      : model_(*model),
        kernels_(*kernels),
        places_(static_cast<size_t>(places)),
        scratch_(model->vocab()),
        row_(static_cast<size_t>(model->vocab())) {
    for (Step& step : steps_) {
      step.tokens.reserve(static_cast<size_t>(places));
      step.logits.reserve(static_cast<size_t>(places * model->vocab()));
    }
    events.reserve(kEvents);
  }

  int64_t places() const override { return static_cast<int64_t>(places_.size()); }

  void begin_drawing(int64_t place, const SamplingParams& params, const Window& window,
                     std::span<const int32_t> seen) override {
    expect(place >= 0 && place < places(), "somebody begins at place ", place);
    Place& at = places_[static_cast<size_t>(place)];
    at = Place();
    at.sampler.emplace(params, window.sinks, window.window, std::numeric_limits<int64_t>::max());
    at.sampler->append(seen);
    at.seen = static_cast<int64_t>(seen.size());
    ++begun;
  }

  void launch(std::span<const DrawSpan> spans) override {
    expect(launched_ - awaited_ < 2, "a third step is launched while two are under way");
    if (model_.before_forward) model_.before_forward(launched_);
    Step& step = steps_[static_cast<size_t>(launched_ % kSteps)];
    step.tokens.clear();
    step.logits.clear();
    int64_t tokens = 0;
    for (size_t i = 0; i < spans.size(); ++i) {
      for (size_t j = 0; j < i; ++j) expect(spans[i].place != spans[j].place, "a place is shared");
      compute(spans[i], &step);
      tokens += spans[i].count;
    }
    expect(!spans.empty(), "a step without rows is launched");
    model_.count_rows(static_cast<int64_t>(spans.size()), tokens);
    note('L');
    ++launched_;
  }

  DrawnStep await() override {
    expect(launched_ > awaited_, "a step is awaited, but none is under way");
    if (model_.gate != nullptr) model_.gate->acquire();
    if (model_.before_results) model_.before_results(awaited_);
    note('A');
    const Step& step = steps_[static_cast<size_t>(awaited_++ % kSteps)];
    ++model_.forwards;
    return {.tokens = step.tokens, .logits = step.logits.data()};
  }

  int64_t launched() const { return launched_; }

  int32_t mute_token = -1;  // behind which it finds no token that may be drawn
  std::atomic<bool> has_complained{false};
  std::atomic<int64_t> begun{0};  // sequences
  // The first launches, L, and awaits, A, in their order. The engine thread's.
  static constexpr size_t kEvents = 10'000;
  std::string events;

 private:
  struct Place {
    std::optional<Sampler> sampler;  // none: nobody has begun here
    int64_t seen = 0;
    int64_t next = -1;       // the index behind what was launched; below 0: nothing was
    bool has_drawn = false;  // behind the tokens that were launched last
    int32_t drawn = 0;
  };
  struct Step {
    std::vector<DrawnToken> tokens;
    std::vector<float> logits;
  };

  template <typename... Parts>
  void expect(bool holds, const Parts&... sentence) {
    if (holds) return;
    has_complained = true;
    throw InternalError(cat("FakeDrawer: ", sentence..., "."));
  }

  void note(char event) {
    if (events.size() < kEvents) events.push_back(event);
  }

  void check(const DrawSpan& span, const Place& place) {
    const int64_t length = span.cache->length(), index = length + span.ahead;
    expect(place.sampler.has_value(), "place ", span.place, " is used before it has begun");
    expect(span.count >= 1, "a span has ", span.count, " tokens");
    expect(index + span.count <= span.cache->max_length(), "index ", index, " is past the end");
    if (place.next < 0) {
      expect(span.ahead == 0 && length >= place.seen, "place ", span.place, " begins ", span.ahead,
             " ahead of ", length, " tokens, and has seen ", place.seen);
    } else {
      expect(index == place.next, "place ", span.place, " goes on at index ", index, " instead of ",
             place.next);
    }
    expect((span.tokens == nullptr) == place.has_drawn, "place ", span.place,
           place.has_drawn ? " has drawn its token and is given another one"
                           : " has drawn no token and is given none");
    expect(span.tokens != nullptr || span.count == 1, "one token was drawn, not ", span.count);
  }

  void compute(const DrawSpan& span, Step* step) {
    expect(span.place >= 0 && span.place < places(), "there is no place ", span.place);
    Place& place = places_[static_cast<size_t>(span.place)];
    check(span, place);
    const int64_t index = span.cache->length() + span.ahead;
    const std::span tokens(span.tokens != nullptr ? span.tokens : &place.drawn,
                           static_cast<size_t>(span.count));
    for (const int32_t token : tokens) {
      expect(token >= 0 && token < model_.vocab(), "there is no token ", token);
    }
    const bool is_wanted = span.wants != DrawSpan::Wants::kNothing;
    model_.read(*span.cache, index, tokens, is_wanted ? row_.data() : nullptr);
    if (span.tokens != nullptr) place.sampler->append(tokens);
    place.next = index + span.count;
    place.has_drawn = span.wants == DrawSpan::Wants::kToken;
    if (place.has_drawn) {
      const bool is_mute = tokens.back() == mute_token;
      step->tokens.push_back(is_mute ? DrawnToken{.token = -1} : draw(&place));
    }
    if (span.wants == DrawSpan::Wants::kLogits) {
      step->logits.insert(step->logits.end(), row_.begin(), row_.end());
    }
  }

  // As it is done on the host, from the same logits.
  DrawnToken draw(Place* place) {
    try {
      const Sampled sampled =
          place->sampler->sample(row_.data(), place->next, kernels_, Launch{&threads_}, scratch_);
      place->drawn = sampled.token;
      place->sampler->append({&place->drawn, 1});
      return {.token = sampled.token, .logprob = sampled.logprob};
    } catch (const NonFiniteLogits&) {
      return {.is_finite = false};
    } catch (const InvalidArgument&) {
      return {.token = -1};
    }
  }

  static constexpr int64_t kSteps = 3;  // what a step gives stays until the second launch behind it

  RuleModel& model_;
  const Kernels& kernels_;
  ThreadPool threads_{1};
  std::vector<Place> places_;
  SamplerScratch scratch_;
  std::vector<float> row_;  // [vocab]
  std::array<Step, kSteps> steps_;
  int64_t launched_ = 0;
  int64_t awaited_ = 0;
};

}  // namespace sinkstream
