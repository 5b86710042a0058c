// Cancel, complete, disconnect, evict and shutdown, forced to meet in every order: a thread is
// halted at a fail point (fail_point.h) while the others continue. By chance each would meet once
// in millions of runs; here all of them do, every time.
#include <future>
#include <tuple>

#include "engine_fixture.h"
#include "fail_points/fail_points.h"

namespace sinkstream {
namespace {

// The fail points of the engine's thread at which another thread may act.
constexpr const char* kStepPoints[] = {"step.arrivals_taken", "step.admit",   "step.launch",
                                       "step.deliver",        "step.publish", "stream.published",
                                       "step.delivered"};

enum class Event { kCancel, kDisconnect, kShutdown };

const char* name_of(Event event) {
  switch (event) {
    case Event::kCancel: return "Cancel";
    case Event::kDisconnect: return "Disconnect";
    case Event::kShutdown: return "Shutdown";
  }
  return "";
}

class EngineOrderTestBase : public EngineTestBase {
 protected:
  using EngineTestBase::EngineTestBase;

  // The stream's tokens are right as far as they go, and the finish reason matches their number.
  static void expect_cut_or_complete(TokenStream& stream, const std::vector<int32_t>& prompt,
                                     int64_t max_tokens, int64_t most) {
    const Reply reply = read_all(stream);
    const auto given = static_cast<int64_t>(reply.ids.size());
    EXPECT_TRUE(reply.has_ended);
    EXPECT_EQ(reply.ids, expected_reply(prompt, given));
    EXPECT_EQ(reply.text, text_of(reply.ids));
    EXPECT_LE(given, most) << "it ran for more than one extra step";
    EXPECT_EQ(stream.finish_reason(),
              given == max_tokens ? FinishReason::kLength : FinishReason::kCancelled);
    EXPECT_NO_THROW(stream.rethrow());
  }

  // No sequence waits, all pages are free, and the next request is served as if nothing had
  // happened.
  void expect_baseline() {
    wait_until([this] { return is_idle(); });
    EXPECT_EQ(read_all(*submit(greedy_request({8}, 100))).ids, expected_reply({8}, 100));
  }
};

class EngineOrderTest : public EngineOrderTestBase, public testing::WithParamInterface<SampledBy> {
 protected:
  EngineOrderTest() : EngineOrderTestBase(GetParam()) {}
};

// ---- every fail point, every event -----------------------------------------------------------

class EngineOrderAt
    : public EngineOrderTestBase,
      public testing::WithParamInterface<std::tuple<const char*, Event, int64_t, SampledBy>> {
 protected:
  EngineOrderAt() : EngineOrderTestBase(std::get<SampledBy>(GetParam())) {}
};

TEST_P(EngineOrderAt, EndsTheStreamWithinOneStepAndHarmsNoNeighbour) {
  const auto [point, event, after, sampled_by] = GetParam();
  constexpr int64_t kTokens = 6, kNeighboursTokens = 90;
  Halt halt(point, after);
  const auto stream = submit(greedy_request({5}, kTokens));
  const auto neighbour = submit(greedy_request({6}, kNeighboursTokens));
  ASSERT_TRUE(halt.await());
  // One token for each forward pass, including those in progress.
  const int64_t most = model.forwards + 1 + lookahead();
  std::thread closer;
  if (event == Event::kCancel) stream->cancel();
  if (event == Event::kDisconnect) stream->close();
  if (event == Event::kShutdown) {
    Halt marked("close.marked");
    closer = std::thread([this] { engine().close(); });
    EXPECT_TRUE(marked.await());
  }
  halt.release();
  if (closer.joinable()) closer.join();

  if (event == Event::kDisconnect) {
    EXPECT_TRUE(read_all(*stream).ids.empty()) << "a disconnected consumer gets nothing";
    wait_until([&] { return stream->finish_reason().has_value(); });
  } else {
    expect_cut_or_complete(*stream, {5}, kTokens, std::min(most, kTokens));
  }
  expect_cut_or_complete(*neighbour, {6}, kNeighboursTokens, kNeighboursTokens);
  if (event == Event::kShutdown) {
    EXPECT_TRUE(is_idle());
    EXPECT_THROW(submit(greedy_request({8}, 3)), EngineDead);
  } else {
    EXPECT_EQ(neighbour->finish_reason(), FinishReason::kLength);
    expect_baseline();
  }
}

constexpr SampledBy kBothSamplers[] = {SampledBy::kHost, SampledBy::kDevice};
constexpr Event kEvents[] = {Event::kCancel, Event::kDisconnect, Event::kShutdown};

std::string name_of_order(const testing::TestParamInfo<EngineOrderAt::ParamType>& info) {
  const auto& [point, event, after, sampled_by] = info.param;
  std::string name =
      cat(point, "_", name_of(event), "_after_", after, "_sampled_by_", name_of(sampled_by));
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Points, EngineOrderAt,
                         testing::Combine(testing::ValuesIn(kStepPoints),
                                          testing::ValuesIn(kEvents), testing::Values(0, 1, 5),
                                          testing::ValuesIn(kBothSamplers)),
                         name_of_order);
// Two sequences end.
INSTANTIATE_TEST_SUITE_P(Ends, EngineOrderAt,
                         testing::Combine(testing::Values("step.finish"),
                                          testing::ValuesIn(kEvents), testing::Values(0, 1),
                                          testing::ValuesIn(kBothSamplers)),
                         name_of_order);

// ---- complete --------------------------------------------------------------------------------

TEST_P(EngineOrderTest, ACompleteReplyStaysCompleteWhenItIsCancelledBeforeItsEndArrives) {
  Halt halt("step.finish");
  const auto stream = submit(greedy_request({5}, 3));
  ASSERT_TRUE(halt.await());
  EXPECT_FALSE(stream->finish_reason());
  EXPECT_TRUE(is_idle()) << "the pages are free before the end is visible";
  stream->cancel();
  halt.release();
  EXPECT_EQ(read_all(*stream).ids, expected_reply({5}, 3));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
}

TEST_P(EngineOrderTest, AConsumerThatWaitsForTheEndIsWokenByIt) {
  Halt halt("step.finish");
  const auto stream = submit(greedy_request({5}, 1));
  ASSERT_TRUE(halt.await());
  auto reading = std::async(std::launch::async, [&] { return read_all(*stream); });
  EXPECT_EQ(reading.wait_for(20ms), std::future_status::timeout) << "it ends too early";
  halt.release();
  EXPECT_EQ(reading.get().ids, expected_reply({5}, 1));
}

// ---- admission -------------------------------------------------------------------------------

TEST_P(EngineOrderTest, OneThatIsCancelledBetweenPlanAndAdmissionGivesItsPagesBack) {
  Halt halt("step.admit");
  const auto stream = submit(greedy_request(std::vector<int32_t>(100, 9), 3));
  ASSERT_TRUE(halt.await());
  stream->cancel();
  halt.release();
  EXPECT_TRUE(read_all(*stream).ids.empty());
  EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(model.forwards, 1) << "it continued its prefill";
  expect_baseline();
}

TEST_P(EngineOrderTest, OneThatWaitsTakesThePagesOfOneThatIsCancelledInTheSameStep) {
  options.max_sequences = 1;
  Halt halt("step.launch", 1);
  const auto first = submit(greedy_request({5}, std::nullopt));
  ASSERT_TRUE(halt.await());
  const auto second = submit(greedy_request({6}, 200));
  first->close();
  halt.release();
  EXPECT_EQ(read_all(*second).ids, expected_reply({6}, 200));
}

// ---- evict -----------------------------------------------------------------------------------

TEST_P(EngineOrderTest, PagesOfOneThatEndsWhileItEvictsServeTheNextOneExactly) {
  options.max_sequences = 2;
  Halt halt("step.deliver", 300);  // far past the window: this step has evicted
  const auto evicting = submit(greedy_request({5}, std::nullopt));
  const auto neighbour = submit(greedy_request({6}, 1000));
  const auto next = submit(greedy_request({7}, 500));
  ASSERT_TRUE(halt.await());
  evicting->cancel();
  halt.release();
  EXPECT_EQ(read_all(*next).ids, expected_reply({7}, 500));
  EXPECT_EQ(read_all(*neighbour).ids, expected_reply({6}, 1000));
  const Reply reply = read_all(*evicting);
  EXPECT_EQ(reply.ids, expected_reply({5}, static_cast<int64_t>(reply.ids.size())));
  const StreamStats stats = evicting->stats();
  EXPECT_EQ(stats.live_tokens, options.window.capacity());
  EXPECT_EQ(stats.live_tokens + stats.evicted_tokens, stats.generated_tokens)
      << "a prompt of one token, and the last one not in the cache";
  int64_t reported = 0;
  for (const StreamMark& mark : reply.marks) {
    if (mark.kind == StreamMark::Kind::kEvicted) reported += mark.count;
  }
  EXPECT_EQ(reported, stats.evicted_tokens);
  expect_baseline();
}

// ---- lag -------------------------------------------------------------------------------------

TEST_P(EngineOrderTest, AParkedSequenceContinuesWhenItsConsumerRingsLate) {
  const auto stream = submit(greedy_request({5}, 6000));
  wait_until([&] { return engine().stats().parked == 1; });
  Halt halt("stream.taken");  // there is room, and the bell has not rung
  auto reading = std::async(std::launch::async, [&] { return read_all(*stream); });
  ASSERT_TRUE(halt.await());
  halt.release();
  EXPECT_EQ(reading.get().ids, expected_reply({5}, 6000));
}

TEST_P(EngineOrderTest, AParkedSequenceEndsWhenItIsCancelledWhileItsConsumerTakes) {
  const auto stream = submit(greedy_request({5}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 1; });
  Halt halt("stream.taken");
  auto reading = std::async(std::launch::async, [&] { return read_all(*stream); });
  ASSERT_TRUE(halt.await());
  stream->cancel();
  wait_until([&] { return is_idle(); });
  halt.release();
  const Reply reply = reading.get();
  EXPECT_EQ(reply.ids, expected_reply({5}, static_cast<int64_t>(reply.ids.size())));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
}

TEST_P(EngineOrderTest, AStreamThatIsClosedWhileItsConsumerIsAboutToTakeGivesTheEnd) {
  const auto stream = submit(greedy_request({5}, std::nullopt));
  Halt halt("stream.take");
  auto reading = std::async(std::launch::async, [&] { return read_all(*stream); });
  ASSERT_TRUE(halt.await());
  stream->close();
  halt.release();
  const Reply reply = reading.get();
  EXPECT_TRUE(reply.has_ended);
  EXPECT_TRUE(reply.ids.empty());
  wait_until([&] { return is_idle(); });
}

// The consumer drops its last reference while the engine is about to wake it.
TEST_P(EngineOrderTest, AConsumerMayBeGoneBeforeItIsWoken) {
  Halt halt("stream.published");
  auto stream = submit(greedy_request({5}, std::nullopt));
  ASSERT_TRUE(halt.await());
  stream->close();
  stream.reset();
  halt.release();
  expect_baseline();
}

// ---- submit and shutdown ---------------------------------------------------------------------

TEST_P(EngineOrderTest, ARequestThatComesTooLateForAnEngineThatClosesIsRefused) {
  engine();
  Halt halt("submit.checked");
  auto asking = std::async(std::launch::async, [&] { return submit(greedy_request({5}, 3)); });
  ASSERT_TRUE(halt.await());
  engine().close();
  halt.release();
  EXPECT_THROW(asking.get(), EngineDead);
  EXPECT_TRUE(is_idle());
}

TEST_P(EngineOrderTest, ARequestThatIsQueuedWhileTheEngineClosesIsCancelled) {
  engine();
  Halt halt("submit.enqueued");  // the bell has not rung for it
  auto asking = std::async(std::launch::async, [&] { return submit(greedy_request({5}, 3)); });
  ASSERT_TRUE(halt.await());
  engine().close();
  halt.release();
  const auto stream = asking.get();
  const Reply reply = read_all(*stream);
  EXPECT_TRUE(reply.has_ended);
  EXPECT_TRUE(stream->finish_reason() == FinishReason::kCancelled ||
              reply.ids == expected_reply({5}, 3));
  EXPECT_TRUE(is_idle());
}

TEST_P(EngineOrderTest, WorkBetweenStepsThatComesWhileTheEngineClosesIsRefusedNotForgotten) {
  const auto stream = submit(greedy_request({5}, std::nullopt));
  Halt in_step("step.deliver");
  ASSERT_TRUE(in_step.await());
  std::promise<void> asking;
  auto working = std::async(std::launch::async, [&] {
    asking.set_value();
    engine().between_steps([] {});
  });
  asking.get_future().wait();
  std::this_thread::sleep_for(5ms);  // so that the caller is usually waiting inside
  Halt marked("close.marked");
  std::thread closer([this] { engine().close(); });
  ASSERT_TRUE(marked.await());
  in_step.release();
  marked.release();
  closer.join();
  EXPECT_THROW(working.get(), EngineDead);
  EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
}

TEST_P(EngineOrderTest, TwoThatCloseTheEngineAtOnceBothReturn) {
  const auto stream = submit(greedy_request({5}, std::nullopt));
  read_tokens(*stream, 10);
  Halt halt("close.marked");
  std::thread first([this] { engine().close(); });
  EXPECT_TRUE(halt.await());
  engine().close();
  EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
  halt.release();
  first.join();
}

// ---- turns of a session ----------------------------------------------------------------------

TEST_P(EngineOrderTest, ATurnFollowsACancelledOneThatEndsWhileItIsWaitedFor) {
  const auto session = engine().open_session({}, {});
  const auto cancelled = engine().submit(greedy_request({5}, std::nullopt), session);
  read_tokens(*cancelled, 3);
  Halt in_step("step.deliver");  // the turn has the session
  ASSERT_TRUE(in_step.await());
  cancelled->cancel();
  Halt asked("session.in_use");
  auto asking = std::async(std::launch::async,
                           [&] { return engine().submit(greedy_request({6}, 4), session); });
  ASSERT_TRUE(asked.await());
  in_step.release();
  wait_until([&] { return cancelled->finish_reason().has_value(); });
  asked.release();
  EXPECT_EQ(read_all(*asking.get()).ids.size(), 4u);
}

// ---- a step that fails -----------------------------------------------------------------------

class EngineOrderThrow : public EngineOrderTestBase,
                         public testing::WithParamInterface<std::tuple<const char*, SampledBy>> {
 protected:
  EngineOrderThrow() : EngineOrderTestBase(std::get<SampledBy>(GetParam())) {}
};

TEST_P(EngineOrderThrow, EndsEveryStreamWithTheCauseAndGivesAllPagesBack) {
  const auto stream = submit(greedy_request({5}, std::nullopt));
  const auto neighbour = submit(greedy_request({6}, std::nullopt));
  const FailPoint broken(std::get<const char*>(GetParam()),
                         once(throws(std::runtime_error("a fault was planted")), 5));
  for (const auto& each : {stream, neighbour}) {
    EXPECT_TRUE(read_all(*each).has_ended);
    EXPECT_EQ(each->finish_reason(), FinishReason::kError);
    try {
      each->rethrow();
      ADD_FAILURE() << "nothing is thrown";
    } catch (const EngineDead& error) {
      EXPECT_NE(std::string(error.what()).find("a fault was planted. "), std::string::npos);
    }
  }
  EXPECT_THROW(submit(greedy_request({8}, 3)), EngineDead);
  wait_until([this] { return is_idle(); });
}

INSTANTIATE_TEST_SUITE_P(Points, EngineOrderThrow,
                         testing::Combine(testing::Values("step.arrivals_taken", "step.admit",
                                                          "step.launch", "step.deliver",
                                                          "step.delivered"),
                                          testing::ValuesIn(kBothSamplers)),
                         [](const auto& info) {
                           std::string name = cat(std::get<const char*>(info.param), "_sampled_by_",
                                                  name_of(std::get<SampledBy>(info.param)));
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST_P(EngineOrderTest, AFaultInOneSequencesDeliveryEndsOnlyThatOne) {
  FailPoint broken("step.publish", once(throws(std::runtime_error("a fault was planted")), 1));
  const auto first = submit(greedy_request({5}, 200));
  const auto second = submit(greedy_request({6}, 200));
  const Reply replies[] = {read_all(*first), read_all(*second)};
  const TokenStream* streams[] = {first.get(), second.get()};
  int failed = 0;
  for (int i = 0; i < 2; ++i) {
    if (streams[i]->finish_reason() == FinishReason::kError) {
      ++failed;
      EXPECT_THROW(streams[i]->rethrow(), std::runtime_error);
    } else {
      EXPECT_EQ(replies[i].ids, expected_reply({5 + i}, 200));
    }
  }
  EXPECT_EQ(failed, 1);
  expect_baseline();
}

TEST_P(EngineOrderTest, ARequestThatIsQueuedWhileAStepFailsLearnsOfIt) {
  Halt halt("step.launch");
  FailPoint broken("step.deliver", throws(std::runtime_error("a fault was planted")));
  const auto first = submit(greedy_request({5}, 3));
  ASSERT_TRUE(halt.await());
  const auto late = submit(greedy_request({6}, 3));  // still queued
  halt.release();
  for (const auto& stream : {first, late}) {
    EXPECT_TRUE(read_all(*stream).has_ended);
    EXPECT_THROW(stream->rethrow(), EngineDead);
  }
}

// ---- all at once -----------------------------------------------------------------------------

// Every fail point is slow, and consumers come and go: for cases that no test above covers.
TEST_P(EngineOrderTest, ASlowEngineOutlivesAStormOfConsumers) {
  std::vector<std::unique_ptr<FailPoint>> slow;
  for (const char* point : {"step.arrivals_taken", "step.admit", "step.launch", "step.deliver",
                            "step.publish", "step.finish", "stream.published", "stream.take",
                            "stream.taken", "stream.closed", "submit.checked", "submit.enqueued"}) {
    slow.push_back(std::make_unique<FailPoint>(point, delay(20us)));
  }
  const auto storm = [&](int32_t salt) {
    for (int32_t i = 0; i < 60; ++i) {
      const auto stream = submit(greedy_request({salt, i}, i % 3 == 0 ? 5 : 100000));
      if (i % 5 == 0) read_tokens(*stream, static_cast<size_t>(i % 4));
      i % 2 == 0 ? stream->cancel() : stream->close();
    }
  };
  engine();
  std::thread left(storm, 1), right(storm, 2);
  const auto steady = submit(greedy_request({7}, 200));
  EXPECT_EQ(read_all(*steady).ids, expected_reply({7}, 200));
  left.join();
  right.join();
  wait_until([&] { return engine().stats().requests == 121 && is_idle(); });
  for (const auto& point : slow) EXPECT_GT(point->visits(), 0);
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineOrderTest);

}  // namespace
}  // namespace sinkstream
