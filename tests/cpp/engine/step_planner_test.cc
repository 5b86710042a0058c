#include "engine/step_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace sinkstream {
namespace {

StepPlan plan_step(std::vector<WaitingView> waiting, std::vector<RunningView> running,
                   const StepLimits& limits) {
  StepPlanner planner;
  StepPlan plan;
  planner.plan(waiting, running, limits, &plan);
  return plan;
}

constexpr StepLimits kRoomy{
    .free = {.pages = {100}}, .max_sequences = 8, .max_tokens = 64, .prefill_chunk = 16};

RunningView decoding(int64_t last_step = 0) { return {.length = 40, .last_step = last_step}; }
RunningView reading(int64_t prompt_left, int64_t length = 0, int64_t last_step = -1) {
  return {.prompt_left = prompt_left, .length = length, .last_step = last_step};
}
RunningView parked() { return {.is_runnable = false, .length = 40}; }

WaitingView waiting(int64_t pages, int64_t prompt_left = 1) {
  return {.memory = {.pages = {pages}}, .prompt_left = prompt_left};
}

using Rows = std::vector<PlanRow>;

TEST(PlanStep, IsEmptyWhereNothingCanRun) {
  EXPECT_TRUE(plan_step({}, {}, kRoomy).empty());
  EXPECT_TRUE(plan_step({}, {parked(), parked()}, kRoomy).empty());
}

TEST(PlanStep, GivesEveryDecodingSequenceItsToken) {
  const StepPlan plan = plan_step({}, {decoding(), parked(), decoding()}, kRoomy);
  EXPECT_EQ(plan.rows, (Rows{{0, 1, true}, {2, 1, true}}));
}

RunningView drafting(int64_t drafts, int64_t last_step = 0) {
  return {.length = 40, .last_step = last_step, .drafts = drafts};
}

TEST(PlanStep, GivesADecodingSequenceItsDraftsWhichCountInTheBudget) {
  StepLimits limits = kRoomy;
  limits.max_tokens = 8;
  EXPECT_EQ(plan_step({}, {drafting(3), drafting(1), reading(9)}, limits).rows,
            (Rows{{0, 4, true, false, 3}, {1, 2, true, false, 1}, {2, 2, false}}));
  limits.max_tokens = 6;  // full: round robin, and the last one's drafts are cut
  EXPECT_EQ(plan_step({}, {drafting(3, 2), drafting(3, 1), reading(9, 0, 3)}, limits).rows,
            (Rows{{0, 2, true, false, 1}, {1, 4, true, false, 3}}));
}

TEST(PlanStep, AdmitsAndReadsInTheSameStep) {
  const StepPlan plan = plan_step({waiting(5, 3)}, {decoding()}, kRoomy);
  EXPECT_EQ(plan.admit, 1);
  EXPECT_EQ(plan.rows, (Rows{{0, 1, true}, {1, 3, true}}));
}

RunningView scoring(int64_t prompt_left, int64_t last_step = -1) {
  return {.prompt_left = prompt_left, .last_step = last_step, .to_score = prompt_left - 1};
}

TEST(PlanStep, ScoresAPromptButForItsLastToken) {
  EXPECT_EQ(plan_step({}, {scoring(9)}, kRoomy).rows, (Rows{{0, 8, false, true}}));
  EXPECT_EQ(plan_step({}, {scoring(30)}, kRoomy).rows, (Rows{{0, 16, false, true}}));
  EXPECT_EQ(plan_step({}, {scoring(1)}, kRoomy).rows, (Rows{{0, 1, true, false}}));
  const StepPlan admitting =
      plan_step({{.memory = {.pages = {5}}, .prompt_left = 9, .to_score = 8}}, {}, kRoomy);
  EXPECT_EQ(admitting.rows, (Rows{{0, 8, false, true}}));
}

TEST(PlanStep, ScoresNoMoreRowsThanHaveLogits) {
  StepLimits limits = kRoomy;
  limits.scored_rows = 10;
  const std::vector<RunningView> views = {scoring(9, 4), scoring(30, 5), scoring(30, 6),
                                          reading(16, 0, 7), decoding()};
  EXPECT_EQ(plan_step({}, views, limits).rows,
            (Rows{{4, 1, true}, {0, 8, false, true}, {1, 2, false, true}, {3, 16, true}}));
}

TEST(PlanStep, AdmitsExactlyWhatFits) {
  StepLimits limits = kRoomy;
  limits.free = {.pages = {10}};
  EXPECT_EQ(plan_step({waiting(5), waiting(5), waiting(1)}, {}, limits).admit, 2);
  limits.free = {.pages = {9}};
  EXPECT_EQ(plan_step({waiting(5), waiting(5), waiting(1)}, {}, limits).admit, 1);
}

TEST(PlanStep, LetsNoneOvertakeOneThatWaitsForMemory) {
  StepLimits limits = kRoomy;
  limits.free = {.pages = {4}};
  EXPECT_EQ(plan_step({waiting(5), waiting(1)}, {}, limits).admit, 0);
}

// Memory has kinds: what is free of one does not help a sequence that lacks another.
TEST(PlanStep, AdmitsASequenceOnlyIfEveryKindOfMemoryFits) {
  StepLimits limits = kRoomy;
  limits.free = {.pages = {10, 4}};
  const WaitingView each = {.memory = {.pages = {3, 2}}};
  EXPECT_EQ(plan_step({each, each, each}, {}, limits).admit, 2);
  limits.free = {.pages = {5, 100}};
  EXPECT_EQ(plan_step({each, each, each}, {}, limits).admit, 1);
}

TEST(PlanStep, CountsParkedSequencesAsRunning) {
  StepLimits limits = kRoomy;
  limits.max_sequences = 2;
  EXPECT_EQ(plan_step({waiting(1), waiting(1)}, {parked()}, limits).admit, 1);
  EXPECT_EQ(plan_step({waiting(1)}, {parked(), parked()}, limits).admit, 0);
}

TEST(PlanStep, WantsLogitsOnlyOfAPromptsLastToken) {
  EXPECT_EQ(plan_step({}, {reading(17)}, kRoomy).rows, (Rows{{0, 16, false}}));
  EXPECT_EQ(plan_step({}, {reading(16)}, kRoomy).rows, (Rows{{0, 16, true}}));
  EXPECT_EQ(plan_step({}, {reading(1, 16)}, kRoomy).rows, (Rows{{0, 1, true}}));
}

TEST(PlanStep, EndsChunksAtMultiplesCountedFromIndexZero) {
  EXPECT_EQ(plan_step({}, {reading(100, 5)}, kRoomy).rows, (Rows{{0, 11, false}}));
  EXPECT_EQ(plan_step({}, {reading(100, 32)}, kRoomy).rows, (Rows{{0, 16, false}}));
}

TEST(PlanStep, LeavesAPromptOutRatherThanCutItsChunk) {
  StepLimits limits = kRoomy;
  limits.max_tokens = 40;
  const StepPlan plan =
      plan_step({}, {decoding(), reading(50), reading(50), reading(50), reading(5)}, limits);
  EXPECT_EQ(plan.rows, (Rows{{0, 1, true}, {1, 16, false}, {2, 16, false}, {4, 5, true}}));
}

TEST(PlanStep, CutsAChunkThatTheBudgetCanNeverHold) {
  StepLimits limits = kRoomy;
  limits.max_tokens = 10;
  EXPECT_EQ(plan_step({}, {reading(50), reading(50)}, limits).rows, (Rows{{0, 10, false}}));
}

TEST(PlanStep, ServesThePromptThatWaitedLongestFirst) {
  StepLimits limits = kRoomy;
  limits.max_tokens = 16;
  EXPECT_EQ(plan_step({}, {reading(50, 16, 7), reading(50, 16, 6)}, limits).rows,
            (Rows{{1, 16, false}}));
  EXPECT_EQ(plan_step({waiting(1, 9)}, {reading(50, 16, 7)}, limits).rows, (Rows{{1, 9, true}}));
}

TEST(PlanStep, IsRoundRobinWhereDecodingAloneFillsTheBudget) {
  StepLimits limits = kRoomy;
  limits.max_tokens = 2;
  const StepPlan plan = plan_step({}, {decoding(8), decoding(7), reading(9, 0, 5)}, limits);
  EXPECT_EQ(plan.rows, (Rows{{2, 2, false}})) << "the prompt is the least recently served";
  EXPECT_EQ(plan_step({}, {decoding(8), decoding(7), reading(9, 0, 9)}, limits).rows,
            (Rows{{0, 1, true}, {1, 1, true}}));
}

TEST(PlanStep, PrefillLessThanDoublesADecodeStep) {
  StepLimits limits = kRoomy;
  limits.prompt_tokens_per_decode_step = 4;
  const RunningView prompt = reading(40);
  EXPECT_EQ(plan_step({}, {prompt}, limits).rows, (Rows{{0, 16, false}}))
      << "no decoding sequence waits for it";
  EXPECT_EQ(plan_step({}, {parked(), prompt}, limits).rows, (Rows{{1, 16, false}}));
  EXPECT_EQ(plan_step({}, {decoding(), prompt}, limits).rows, (Rows{{0, 1, true}, {1, 4, false}}));
  std::vector<RunningView> running(10, decoding());
  running.push_back(prompt);
  EXPECT_EQ(plan_step({}, running, limits).rows.back(), (PlanRow{10, 5, false}));
  // All prompts together, least recently served first.
  running.back() = reading(3, 0, 2);
  running.push_back(reading(2, 0, 1));
  const StepPlan plan = plan_step({}, running, limits);
  EXPECT_EQ(Rows(plan.rows.begin() + 10, plan.rows.end()), (Rows{{11, 2, true}, {10, 3, true}}));
}

// ---- experts ---------------------------------------------------------------------------------

StepLimits with_experts(const ExpertReads& experts, int64_t per_step = 10) {
  StepLimits limits = kRoomy;
  limits.prompt_tokens_per_decode_step = per_step;
  limits.experts = experts;
  limits.max_sequences = 1000;
  limits.max_tokens = 2048;
  limits.prefill_chunk = 1024;
  return limits;
}

std::vector<RunningView> decoding_and(int64_t count, RunningView prompt) {
  std::vector<RunningView> running(static_cast<size_t>(count), decoding());
  running.push_back(prompt);
  return running;
}

// In steps of one token.
struct Reading {
  double until_read = 0;   // time until the prompt has been read
  double time = 0;         // until there was no deficit either
  double undisturbed = 0;  // time that the same steps would have taken without the prompt
  double longest = 0;      // step
};

// Reads a prompt while `count` sequences decode.
Reading read_among(int64_t count, int64_t prompt, StepLimits limits) {
  const ExpertReads& experts = limits.experts;
  Reading found;
  for (int64_t left = prompt; left > 0 || limits.deficit > 0;) {
    std::vector<RunningView> running = decoding_and(count, reading(left, prompt - left));
    if (left == 0) running.pop_back();
    const StepPlan plan = plan_step({}, running, limits);
    const int64_t read = std::ssize(plan.rows) > count ? plan.rows.back().count : 0;
    EXPECT_TRUE(limits.deficit == 0 || read == 0)
        << "takes prompt tokens with a deficit of " << limits.deficit;
    const auto per_step = static_cast<double>(limits.prompt_tokens_per_decode_step);
    const double own = std::max(experts.of(count), static_cast<double>(count) / (2 * per_step));
    const double time =
        own + experts.of(count + read) - experts.of(count) + static_cast<double>(read) / per_step;
    found.time += time;
    found.undisturbed += own;
    found.longest = std::max(found.longest, time);
    if (left > 0) found.until_read = found.time;
    left -= read;
    limits.deficit = plan.deficit;
  }
  return found;
}

struct ExpertShape {
  const char* name;
  ExpertReads reads;
};
const ExpertShape kShapes[] = {{"Qwen3-30B-A3B", {.part = 0.60, .share = 8.0 / 128}},
                               {"gpt-oss-20b", {.part = 0.66, .share = 4.0 / 32}},
                               {"Mixtral 8x7B", {.part = 0.88, .share = 2.0 / 8}}};

TEST(ExpertReads, AreThoseOfExpertsThatAreChosenAsIfByChance) {
  const ExpertReads reads = {.part = 0.6, .share = 0.25};
  EXPECT_NEAR(reads.of(1), 1, 1e-12);
  EXPECT_NEAR(reads.of(2), 0.4 + 0.6 * (1 + 0.75), 1e-12);
  EXPECT_NEAR(reads.of(1000), 0.4 + 0.6 * 4, 1e-12) << "all of them, once";
  EXPECT_NEAR(ExpertReads().of(7), 1, 1e-12) << "no experts";
}

TEST(PlanStep, ReadsAPromptWithAllExpertsAndThenLetsStreamsHaveAsMuchTime) {
  for (const auto& [name, reads] : kShapes) {
    const auto chunk = static_cast<int64_t>(16 / reads.share);
    for (const int64_t per_step : {4, 10}) {
      for (const int64_t count : {1, 2, 8, 40}) {
        const StepLimits limits = with_experts(reads, per_step);
        const Reading found = read_among(count, 4096, limits);
        EXPECT_GE(found.undisturbed / found.time, 0.5) << name << ", " << count << " streams";
        EXPECT_LE(found.longest, reads.of(count + chunk) +
                                     static_cast<double>(chunk) / static_cast<double>(per_step))
            << name << ", " << count << " streams";
        if (count > 1) continue;
        // One token at a time would read experts of its own, and never cause a deficit.
        const double alone = reads.of(2) + 1 / static_cast<double>(per_step);
        EXPECT_LE(found.until_read, 4096 * alone / 2) << name;
        EXPECT_GE(4096 / found.until_read, per_step == 10 ? 3.3 : 1.6) << name;
      }
    }
  }
}

// With a dense model's share, or with many streams, which read nearly all experts anyway, the
// tokens that never cause a deficit are read faster.
TEST(PlanStep, TakesTheTokensThatCauseNoDeficitWhereThatIsFaster) {
  const auto prompt_tokens_with = [](int64_t count, const ExpertReads& reads) {
    const StepPlan plan = plan_step({}, decoding_and(count, reading(900)), with_experts(reads));
    EXPECT_TRUE(plan.deficit == 0 || plan.rows.back().count == 256);
    return plan.rows.back().count;
  };
  EXPECT_EQ(prompt_tokens_with(1, {}), 10) << "there are none";
  EXPECT_EQ(prompt_tokens_with(1, {.part = 1, .share = 1}), 10) << "all are read anyway";
  EXPECT_EQ(prompt_tokens_with(300, {.part = 1, .share = 1}), 150);
  const ExpertReads many = kShapes[0].reads;
  EXPECT_EQ(prompt_tokens_with(1, many), 256);
  const int64_t few = prompt_tokens_with(40, many);
  EXPECT_LT(few, 256);
  EXPECT_LE(many.of(40 + few) + static_cast<double>(few) / 10, 2 * many.of(40));
}

TEST(PlanStep, HasNoDeficitOnceNoneDecodes) {
  StepLimits limits = with_experts(kShapes[0].reads);
  const StepPlan first = plan_step({}, decoding_and(1, reading(900)), limits);
  EXPECT_GT(first.deficit, 30);
  limits.deficit = first.deficit;
  const StepPlan second = plan_step({}, decoding_and(1, reading(644, 256)), limits);
  EXPECT_EQ(second.rows, (Rows{{0, 1, true}}));
  EXPECT_NEAR(second.deficit, first.deficit - 1, 1e-9);
  EXPECT_EQ(plan_step({}, {reading(644, 256)}, limits).rows, (Rows{{0, 644, true}}));
  EXPECT_EQ(plan_step({}, {reading(644, 256)}, limits).deficit, 0);
  EXPECT_EQ(plan_step({}, {parked(), reading(644, 256)}, limits).deficit, 0);
}

// ---- shares ----------------------------------------------------------------------------------

RunningView of(int64_t share, RunningView view, int64_t priority = 0) {
  view.share = share;
  view.priority = priority;
  return view;
}

// The prompt tokens that each share gets in a step of 32 tokens.
std::vector<int64_t> tokens_of_shares(const std::vector<RunningView>& views,
                                      const std::vector<ShareView>& shares) {
  StepLimits limits = kRoomy;
  limits.max_tokens = 32;
  limits.prefill_chunk = 4;
  limits.shares = shares;
  std::vector<int64_t> tokens(shares.size());
  for (const PlanRow& row : plan_step({}, views, limits).rows) {
    const RunningView& view = views[static_cast<size_t>(row.sequence)];
    if (view.prompt_left > 0) tokens[static_cast<size_t>(view.share)] += row.count;
  }
  return tokens;
}

TEST(PlanStep, GivesEachShareAnEqualPartOfThePromptTokensHoweverManyPromptsItHas) {
  std::vector<RunningView> views(12, of(0, reading(50)));
  for (int i = 0; i < 4; ++i) views.push_back(of(1, reading(50, 0, 7)));
  EXPECT_EQ(tokens_of_shares(views, {{}, {}}), (std::vector<int64_t>{16, 16}));
  EXPECT_EQ(tokens_of_shares(views, {{.weight = 3}, {.weight = 1}}), (std::vector<int64_t>{24, 8}));
}

TEST(PlanStep, ServesAShareThatHasHadLessFirst) {
  const std::vector<RunningView> views(9, of(0, reading(50)));
  std::vector<RunningView> both = views;
  both.push_back(of(1, reading(50)));
  both.push_back(of(1, reading(50)));
  EXPECT_EQ(tokens_of_shares(both, {{.served = 40}, {.served = 0}}), (std::vector<int64_t>{24, 8}));
}

TEST(PlanStep, LeavesWhatAShareDoesNotUseToTheOthers) {
  std::vector<RunningView> views(12, of(0, reading(50)));
  views.push_back(of(1, reading(3)));
  EXPECT_EQ(tokens_of_shares(views, {{}, {}}), (std::vector<int64_t>{28, 3}));
}

TEST(PlanStep, CountsDecodedTokensAsServed) {
  std::vector<RunningView> views(8, of(0, decoding()));
  for (int i = 0; i < 8; ++i) views.push_back(of(0, reading(50)));
  for (int i = 0; i < 8; ++i) views.push_back(of(1, reading(50)));
  EXPECT_EQ(tokens_of_shares(views, {{}, {}}), (std::vector<int64_t>{8, 16}));
}

TEST(PlanStep, ReadsPromptsOfOneShareByPriority) {
  StepLimits limits = kRoomy;
  limits.max_tokens = 16;
  EXPECT_EQ(plan_step({}, {of(0, reading(50, 0, 3)), of(0, reading(50, 0, 4), -1)}, limits).rows,
            (Rows{{1, 16, false}}));
}

TEST(NextToAdmit, IsOfTheShareThatRunsTheFewestByItsWeight) {
  const std::vector<Candidate> waiting = {{.share = 0}, {.share = 0}, {.share = 1}};
  EXPECT_EQ(next_to_admit(waiting, std::vector<ShareView>{{}, {}}), 0u);
  EXPECT_EQ(next_to_admit(waiting, std::vector<ShareView>{{.running = 2}, {.running = 1}}), 2u);
  EXPECT_EQ(next_to_admit(waiting, std::vector<ShareView>{{.weight = 3, .running = 2},
                                                          {.weight = 1, .running = 1}}),
            0u);
  EXPECT_EQ(next_to_admit(waiting, std::vector<ShareView>{{.served = 9}, {.served = 2}}), 2u);
}

TEST(NextToAdmit, IsATurnOfASessionThenTheFirstOfThePriority) {
  const std::vector<ShareView> one(1);
  const std::vector<Candidate> waiting = {
      {.priority = 2}, {.priority = 1}, {.priority = 1}, {.priority = 5, .has_memory = true}};
  EXPECT_EQ(next_to_admit(waiting, one), 3u);
  EXPECT_EQ(next_to_admit(std::span(waiting).first(3), one), 1u);
}

TEST(Shares, HaveNoClaimToWhatTheyDidNotUse) {
  Shares shares;
  Shares::Share* const busy = shares.enter("busy", 1);
  busy->view.served = 1e6;
  Shares::Share* const fresh = shares.enter("fresh", 1);
  EXPECT_EQ(shares.views()[1].served, shares.views()[0].served);
  busy->view.served += 1e6;  // while the other could not run
  EXPECT_LE(shares.views()[0].served - shares.views()[1].served, 4096);
  shares.leave(busy);
  EXPECT_EQ(shares.views().size(), 1u);
  EXPECT_EQ(shares.enter("fresh", 2), fresh);
  EXPECT_EQ(shares.views()[0].weight, 2);
}

TEST(PlanStep, ReusesItsPlan) {
  StepPlanner planner;
  StepPlan plan;
  const std::vector<RunningView> running{decoding()};
  const std::vector<WaitingView> views{waiting(1)};
  planner.plan(views, running, kRoomy, &plan);
  planner.plan({}, running, kRoomy, &plan);
  EXPECT_EQ(plan.admit, 0);
  EXPECT_EQ(plan.rows, (Rows{{0, 1, true}}));
}

// Simulates random requests from start to end: none starves, no limit is exceeded, nothing is
// prefilled twice.
TEST(PlanStep, ServesAllWithinItsLimits) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 draw(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(draw);
    };
    StepLimits limits{.free = {.pages = {pick(4, 12), pick(4, 12)}},
                      .max_sequences = pick(1, 6),
                      .max_tokens = pick(1, 20),
                      .prefill_chunk = pick(1, 20),
                      .prompt_tokens_per_decode_step = pick(1, 30)};
    if (seed % 2 == 1) {
      limits.experts = {.part = static_cast<double>(pick(1, 10)) / 10,
                        .share = 1 / static_cast<double>(pick(1, 16))};
    }
    const MemoryAmount all = limits.free;
    struct Active {
      RunningView view;
      MemoryAmount memory;
      int64_t decodes_left;
    };
    std::vector<WaitingView> waiting;
    std::vector<int64_t> decodes;
    for (int i = 0; i < 12; ++i) {
      waiting.push_back(
          {.memory = {.pages = {pick(1, 4), pick(0, 4)}}, .prompt_left = pick(1, 60)});
      decodes.push_back(pick(0, 30));
    }
    std::vector<Active> running;
    StepPlanner planner;
    StepPlan plan;
    int64_t step = 0;
    for (; step < 5000 && !(waiting.empty() && running.empty()); ++step) {
      std::vector<RunningView> views;
      for (const Active& active : running) views.push_back(active.view);
      planner.plan(waiting, views, limits, &plan);
      ASSERT_FALSE(plan.empty()) << "seed " << seed;
      for (int64_t i = 0; i < plan.admit; ++i) {
        running.push_back({{.prompt_left = waiting[0].prompt_left}, waiting[0].memory, decodes[0]});
        limits.free -= waiting[0].memory;
        waiting.erase(waiting.begin());
        decodes.erase(decodes.begin());
      }
      ASSERT_TRUE(MemoryAmount().fits_in(limits.free));
      ASSERT_LE(static_cast<int64_t>(running.size()), limits.max_sequences);
      const int64_t decoding =
          std::count_if(views.begin(), views.end(),
                        [](const RunningView& view) { return view.prompt_left == 0; });
      int64_t tokens = 0, prompt_tokens = 0;
      std::vector<bool> served(running.size());
      for (const PlanRow& row : plan.rows) {
        ASSERT_FALSE(served[row.sequence]);
        served[row.sequence] = true;
        Active& active = running[row.sequence];
        tokens += row.count;
        ASSERT_GE(row.count, 1);
        const bool reads = active.view.prompt_left > 0;
        ASSERT_LE(row.count, reads ? std::min(active.view.prompt_left, limits.prefill_chunk) : 1);
        if (reads) {
          active.view.prompt_left -= row.count;
          prompt_tokens += row.count;
        } else {
          --active.decodes_left;
        }
        ASSERT_EQ(row.wants_logits, active.view.prompt_left == 0);
        active.view.length += row.count;
        active.view.last_step = step;
      }
      ASSERT_LE(tokens, limits.max_tokens);
      if (decoding > 0 && limits.experts.part == 0) {
        ASSERT_LE(prompt_tokens, std::max(limits.prompt_tokens_per_decode_step, decoding / 2));
      }
      if (decoding > 0 && decoding < limits.max_tokens && limits.deficit > 0) {
        ASSERT_EQ(prompt_tokens, 0);
      }
      ASSERT_GE(plan.deficit, 0);
      ASSERT_LE(plan.deficit, limits.experts.of(1000) + 20) << "what one chunk adds";
      limits.deficit = plan.deficit;
      std::erase_if(running, [&](const Active& active) {
        const bool ended = active.view.prompt_left == 0 && active.decodes_left <= 0;
        if (ended) limits.free += active.memory;
        return ended;
      });
    }
    EXPECT_LT(step, 5000) << "seed " << seed << ": a sequence starves";
    EXPECT_EQ(limits.free, all);
  }
}

}  // namespace
}  // namespace sinkstream
