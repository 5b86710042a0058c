// All times of an engine come from one clock that is independent of the date: setting the date
// changes nothing, and if the clock leaps because the machine slept, times include the leap.
#include "timed_fixture.h"

namespace sinkstream {
namespace {

using EngineClockTest = TimedEngineTest;

TEST_P(EngineClockTest, NothingTakesTimeWhileItStandsStill) {
  const auto stream = submit(greedy_request({5}, 20));
  read_all(*stream);
  wait_for_iteration();
  const StreamStats stats = stream->stats();
  EXPECT_EQ(stats.first_token_s, 0);
  EXPECT_EQ(stats.decode_gaps, 19);
  EXPECT_EQ(stats.decode_s, 0);
  EXPECT_EQ(engine().stats().step_times.sum_ns, 0);
  for (const StepRecord& step : engine().steps_since(0)) {
    EXPECT_EQ(step.begin, ManualClock::now());
    EXPECT_EQ(step.end, ManualClock::now());
  }
  for (const PhaseChange& change : engine().phase_changes_since(0).changes) {
    EXPECT_EQ(change.at, ManualClock::now());
  }
}

TEST_P(EngineClockTest, EveryTimeIsAsLongAsItSays) {
  model.before_results = [](int64_t forward) {
    ManualClock::pass(forward == 10 ? 1h : 1ms);  // once, the machine sleeps
  };
  const Clock::time_point begin = ManualClock::now();
  const auto stream = submit(greedy_request(std::vector<int32_t>(40, 9), 20));  // three chunks
  read_all(*stream);
  wait_for_iteration();
  const StreamStats stats = stream->stats();
  EXPECT_DOUBLE_EQ(stats.first_token_s, 0.003);
  EXPECT_NEAR(stats.decode_s, 3600.018, 1e-9);
  const EngineStats totals = engine().stats();
  EXPECT_EQ(totals.steps, 22);
  // A step lasts from launch to delivery: with lookahead it also waits for the previous step.
  const auto waiting = lookahead() * (1h + 20ms);
  EXPECT_EQ(totals.step_times.sum_ns, std::chrono::nanoseconds(1h + 21ms + waiting).count());
  EXPECT_EQ(totals.first_token_times.sum_ns, std::chrono::nanoseconds(3ms).count());
  const auto steps = engine().steps_since(0);
  ASSERT_EQ(steps.size(), 22u);
  EXPECT_EQ(steps[5].begin, begin + 5ms - lookahead() * 1ms);
  EXPECT_EQ(steps[5].forward_end, begin + 6ms);
  EXPECT_EQ(steps[21].end, begin + 1h + 21ms);
}

TEST_P(EngineClockTest, APauseOfAConsumerIsNoTimeBetweenTokens) {
  const auto stream = submit(greedy_request({5}, 3000));
  wait_until_parked(1);
  pass(1h);
  read_all(*stream);
  EXPECT_EQ(stream->stats().generated_tokens, 3000);
  EXPECT_EQ(stream->stats().decode_s, 0);
}

TEST_P(EngineClockTest, ALeapEndsOnlyThoseWhoseTimeIsUp) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const double timeout_s : {10.0, 3600.0, 3601.0}) {
    Request request = greedy_request({5}, std::nullopt);
    request.params.timeout_s = timeout_s;
    streams.push_back(submit(std::move(request)));
  }
  streams.push_back(submit(greedy_request({5}, std::nullopt)));
  for (const auto& stream : streams) read_tokens(*stream, 10);
  pass(1h);
  EXPECT_EQ(streams[0]->finish_reason(), FinishReason::kTimeout);
  EXPECT_EQ(streams[1]->finish_reason(), FinishReason::kTimeout);
  EXPECT_FALSE(streams[2]->finish_reason());
  EXPECT_FALSE(streams[3]->finish_reason());
  for (const auto& stream : streams) stream->cancel();
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineClockTest);

}  // namespace
}  // namespace sinkstream
