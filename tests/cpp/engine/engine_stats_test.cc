// The engine's counters, whatever happens to its requests.
#include <numeric>

#include "engine_fixture.h"

namespace sinkstream {
namespace {

class EngineStatsTest : public EngineTest {
 protected:
  static int64_t ended(const EngineStats& stats) {
    return std::accumulate(stats.finished.begin(), stats.finished.end(), int64_t{0});
  }
  static int64_t finished(const EngineStats& stats, FinishReason reason) {
    return stats.finished.at(static_cast<size_t>(reason));
  }
  // Holds at any moment.
  static void expect_consistent(const EngineStats& stats) {
    EXPECT_EQ(stats.requests, stats.waiting + stats.running + ended(stats));
    EXPECT_GE(stats.waiting, 0);
    EXPECT_GE(stats.running, stats.parked);
    EXPECT_GE(stats.parked, 0);
    EXPECT_EQ(stats.step_times.count, stats.steps);
    EXPECT_LE(stats.first_token_times.count, stats.requests);
    EXPECT_GE(stats.free_pages, 0);
    EXPECT_LE(stats.free_pages + stats.shared_pages, stats.pages);
    EXPECT_GE(stats.queue_lag, 0);
  }
  // The phases of each request, in order.
  std::vector<std::vector<Phase>> phases(size_t requests) {
    std::vector<std::vector<Phase>> found(requests);
    for (const PhaseChange& change : engine().phase_changes_since(0).changes) {
      found.at(static_cast<size_t>(change.request) - 1).push_back(change.phase);
    }
    return found;
  }
};

TEST(FinishReasons, AreAllListed) {
  for (size_t i = 0; i < std::size(kFinishReasons); ++i) {
    EXPECT_EQ(kFinishReasons[i], static_cast<FinishReason>(i));
    EXPECT_STRNE(name_of(kFinishReasons[i]), "");
  }
  EXPECT_STREQ(name_of(static_cast<FinishReason>(std::size(kFinishReasons))), "");
}

TEST_P(EngineStatsTest, CountsEveryEndByItsReason) {
  Request stop = greedy_request({5}, 50);
  stop.params.stop_token_ids = {expected_reply({5}, 3)[2]};
  Request stop_string = greedy_request({6}, 50);
  stop_string.params.stop = {text_of(expected_reply({6}, 4))};
  read_all(*submit(stop));
  read_all(*submit(stop_string));
  for (int i = 0; i < 3; ++i) read_all(*submit(greedy_request({7}, 2)));
  const auto cancelled = submit(greedy_request({8}, std::nullopt));
  cancelled->cancel();
  read_all(*cancelled);
  model.poison_token = 9;
  const auto failed = submit(greedy_request({9}, 10));
  read_all(*failed);
  ASSERT_EQ(failed->finish_reason(), FinishReason::kError);
  const EngineStats stats = engine().stats();
  EXPECT_EQ(finished(stats, FinishReason::kStop), 1);
  EXPECT_EQ(finished(stats, FinishReason::kStopString), 1);
  EXPECT_EQ(finished(stats, FinishReason::kLength), 3);
  EXPECT_EQ(finished(stats, FinishReason::kCancelled), 1);
  EXPECT_EQ(finished(stats, FinishReason::kError), 1);
  EXPECT_EQ(stats.requests, 7);
  EXPECT_FALSE(stats.is_dead);
  expect_consistent(stats);
}

TEST_P(EngineStatsTest, AddUpAtAnyMomentOfABusyLife) {
  constexpr int kRounds = 60;
  Engine& watched =
      engine();  // created here: two threads must not both be the first to call engine()
  std::atomic<bool> has_ended{false};
  std::thread observer([&] {
    while (!has_ended) expect_consistent(watched.stats());
  });
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (int32_t i = 0; i < 7; ++i) {
      streams.push_back(submit(greedy_request({5 + i, round}, round % 30)));
    }
    streams[static_cast<size_t>(round) % 7]->cancel();
    streams[static_cast<size_t>(round) % 5]->close();
    for (const auto& stream : streams) read_all(*stream);
  }
  wait_until([&] { return is_idle(); });
  has_ended = true;
  observer.join();
  const EngineStats stats = engine().stats();
  expect_consistent(stats);
  EXPECT_EQ(stats.requests, 7 * kRounds);
  EXPECT_EQ(ended(stats), 7 * kRounds);
  EXPECT_EQ(stats.queue_lag, 0);
}

TEST_P(EngineStatsTest, CountARequestAsSoonAsItIsSubmitted) {
  engine();
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int32_t count = 1; count <= 200; ++count) {
    streams.push_back(submit(greedy_request({5}, 3)));
    const EngineStats stats = engine().stats();
    EXPECT_EQ(stats.requests, count);
    expect_consistent(stats);
  }
  for (const auto& stream : streams) read_all(*stream);
}

TEST_P(EngineStatsTest, CountsTheTimeToEachFirstTokenOnce) {
  read_all(*submit(greedy_request({5}, 40)));
  read_all(*submit(greedy_request({6}, 1)));
  read_all(*submit(greedy_request({7}, 0)));  // no token
  const EngineStats stats = engine().stats();
  EXPECT_EQ(stats.first_token_times.count, 2);
  EXPECT_GT(stats.first_token_times.sum_ns, 0);
}

TEST_P(EngineStatsTest, CountsTheTokensThatAreNotTakenYet) {
  const auto first = submit(greedy_request({5}, 30));
  const auto second = submit(greedy_request({6}, 20));
  wait_until([&] { return ended(engine().stats()) == 2; });
  EXPECT_EQ(engine().stats().queue_lag, 50);
  EXPECT_EQ(engine().stats().queue_lag, first->pending_tokens() + second->pending_tokens());
  read_all(*first);
  EXPECT_EQ(engine().stats().queue_lag, 20);
  second->close();
  EXPECT_EQ(engine().stats().queue_lag, 0);
}

TEST_P(EngineStatsTest, ForgetTheLagOfAStreamWithoutOwners) {
  {
    const auto dropped = submit(greedy_request({5}, 30));
    wait_until([&] { return ended(engine().stats()) == 1; });
    EXPECT_EQ(engine().stats().queue_lag, 30);
  }
  wait_until(
      [&] { return engine().stats().queue_lag == 0; });  // the engine releases its reference, too
}

TEST_P(EngineStatsTest, NumberRequestsFromOne) {
  EXPECT_EQ(submit(greedy_request({5}, 1))->request_id(), 1);
  EXPECT_EQ(submit(greedy_request({5}, 1))->request_id(), 2);
}

TEST_P(EngineStatsTest, RecordThePhasesOfARequest) {
  const auto stream = submit(greedy_request({5}, std::nullopt));
  wait_until([&] { return phases(1)[0].size() == 4; });  // it is parked
  read_tokens(*stream, TokenStream::kMaxPendingTokens);
  wait_until([&] { return phases(1)[0].size() == 6; });  // it is parked again
  stream->cancel();
  read_all(*stream);
  EXPECT_EQ(phases(1)[0],
            (std::vector{Phase::kWaiting, Phase::kPrefill, Phase::kDecode, Phase::kParked,
                         Phase::kDecode, Phase::kParked, Phase::kFinished}));
  const auto [first, changes] = engine().phase_changes_since(2);
  EXPECT_EQ(first, 2);
  ASSERT_EQ(changes.size(), 5u);
  EXPECT_EQ(changes.back().reason, FinishReason::kCancelled);
  EXPECT_EQ(changes.back().prompt_tokens, 1);
  EXPECT_EQ(changes.back().generated_tokens, stream->stats().generated_tokens);
  for (size_t i = 1; i < changes.size(); ++i) EXPECT_LE(changes[i - 1].at, changes[i].at);
}

TEST_P(EngineStatsTest, AddUpWhenAStepFailsAndOthersHaveJustArrived) {
  std::counting_semaphore<1 << 20> gate{0};
  model.gate = &gate;
  model.before_results = [](int64_t forward) {
    if (forward == 1) throw std::runtime_error("the model broke");
  };
  options.max_sequences = 1;
  const auto running = submit(greedy_request({5}, 50));
  const auto waiting = submit(greedy_request({6}, 50));
  gate.release();
  read_tokens(*running, 1);
  const auto late = submit(greedy_request({7}, 50));  // the engine is in its forward
  std::atomic<bool> has_ended{false};
  std::thread observer([&] {
    while (!has_ended) expect_consistent(engine().stats());
  });
  gate.release();
  for (const auto& stream : {running, waiting, late}) read_all(*stream);
  wait_until([&] { return is_idle(); });
  has_ended = true;
  observer.join();
  const EngineStats stats = engine().stats();
  expect_consistent(stats);
  EXPECT_EQ(stats.requests, 3);
  EXPECT_EQ(finished(stats, FinishReason::kError), 3);
  EXPECT_TRUE(stats.is_dead);
  for (const std::vector<Phase>& of_one : phases(3)) {
    EXPECT_EQ(of_one.front(), Phase::kWaiting);
    EXPECT_EQ(of_one.back(), Phase::kFinished);
  }
}

TEST_P(EngineStatsTest, AddUpWhenTheEngineIsClosed) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int32_t i = 0; i < 9; ++i) streams.push_back(submit(greedy_request({5 + i}, std::nullopt)));
  engine().close();
  const EngineStats stats = engine().stats();
  expect_consistent(stats);
  EXPECT_EQ(stats.requests, 9);
  EXPECT_EQ(finished(stats, FinishReason::kCancelled), 9);
  EXPECT_FALSE(stats.is_dead);
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineStatsTest);

}  // namespace
}  // namespace sinkstream
