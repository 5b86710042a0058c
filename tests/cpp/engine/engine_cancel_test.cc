// Consumers that disconnect, lag or never read; waiting for memory; closing the engine.
#include <sys/resource.h>

#include "engine_fixture.h"

namespace sinkstream {
namespace {

using Gate = std::counting_semaphore<1 << 20>;

class EngineCancelTest : public EngineTest {
 protected:
  ~EngineCancelTest() override {  // before the gate is destroyed
    open_gate();
    engine().close();
  }
  // Lets the model run `forwards` more times, and waits until it has.
  void step(int64_t forwards) {
    const int64_t target = model.forwards + forwards;
    gate.release(forwards);
    wait_until([&] { return model.forwards >= target; });
  }
  void open_gate() { gate.release(1 << 19); }
  Phase phase_of(const TokenStream& stream) { return stream.stats().phase; }

  Gate gate{0};
};

TEST_P(EngineCancelTest, EndsARunningSequenceWithinOneStep) {
  model.gate = &gate;
  const auto stream = submit(greedy_request({5}, std::nullopt));
  step(10);
  stream->cancel();
  open_gate();
  wait_until([&] { return is_idle(); });
  EXPECT_LE(model.forwards, 11 + lookahead());
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.ids, expected_reply({5}, static_cast<int64_t>(reply.ids.size())));
  EXPECT_GE(reply.ids.size(), 10u);
  EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
}

TEST_P(EngineCancelTest, EndsAWaitingSequenceThatNeverRan) {
  options.max_sequences = 1;
  model.gate = &gate;
  const auto first = submit(greedy_request({5}, 3));
  const auto second = submit(greedy_request({6}, 3));
  step(1);
  EXPECT_EQ(phase_of(*second), Phase::kWaiting);
  second->cancel();
  step(1);
  EXPECT_TRUE(read_all(*second).ids.empty());
  EXPECT_EQ(second->finish_reason(), FinishReason::kCancelled);
  open_gate();
  EXPECT_EQ(read_all(*first).ids, expected_reply({5}, 3));
}

TEST_P(EngineCancelTest, EndsASequenceInTheMiddleOfItsPrompt) {
  model.gate = &gate;
  const auto stream = submit(greedy_request(std::vector<int32_t>(200, 9), 3));
  step(3);
  EXPECT_EQ(phase_of(*stream), Phase::kPrefill);
  stream->cancel();
  open_gate();
  EXPECT_TRUE(read_all(*stream).ids.empty());
  wait_until([&] { return is_idle(); });
  EXPECT_LE(model.forwards, 4 + lookahead());
}

TEST_P(EngineCancelTest, EndsAParkedSequence) {
  const auto stream = submit(greedy_request({5}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 1; });
  EXPECT_EQ(phase_of(*stream), Phase::kParked);
  engine().between_steps([] {});  // no forward pass is in flight that would still be counted
  const int64_t forwards = model.forwards;
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(model.forwards, forwards) << "a parked sequence has run";
  stream->close();
  wait_until([&] { return is_idle(); });
}

TEST_P(EngineCancelTest, ToleratesTheCancelOfAFinishedStream) {
  const auto stream = submit(greedy_request({5}, 3));
  EXPECT_EQ(read_all(*stream).ids.size(), 3u);
  stream->cancel();
  stream->close();
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
}

TEST_P(EngineCancelTest, ShowsWhatWasHeldBackWhenItIsCancelled) {
  model.gate = &gate;
  const auto expected = expected_reply({5}, 4);
  Request request = greedy_request({5}, std::nullopt);
  request.params.stop = {text_of(expected) + "and more"};
  const auto stream = submit(request);
  step(4);
  stream->cancel();
  open_gate();
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.text, text_of(reply.ids));
}

TEST_P(EngineCancelTest, ParksOneThatIsNotReadAndLosesNothing) {
  const auto lagging = submit(greedy_request({5}, 6000));
  const auto lively = submit(greedy_request({6}, 5000));
  EXPECT_EQ(read_all(*lively).ids, expected_reply({6}, 5000)) << "a neighbour has suffered";
  wait_until([&] { return engine().stats().parked == 1; });
  EXPECT_LE(lagging->pending_tokens(), 2 * static_cast<int64_t>(TokenStream::kMaxPendingTokens));
  const Reply reply = read_all(*lagging);
  EXPECT_EQ(reply.ids, expected_reply({5}, 6000));
  EXPECT_EQ(reply.text, text_of(reply.ids));
}

TEST_P(EngineCancelTest, SleepsWhenThereIsNothingToDo) {
  read_all(*submit(greedy_request({5}, 3)));
  const auto cpu_s = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  std::this_thread::sleep_for(100ms);
  const double before = cpu_s();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(cpu_s() - before, 0.03);
}

TEST_P(EngineCancelTest, AdmitsInOrderOfArrival) {
  options.max_sequences = 1;
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int32_t i = 0; i < 5; ++i) streams.push_back(submit(greedy_request({i}, 5)));
  EXPECT_EQ(read_all(*streams[4]).ids, expected_reply({4}, 5));
  for (int32_t i = 0; i < 4; ++i) EXPECT_TRUE(streams[i]->finish_reason()) << i;
}

TEST_P(EngineCancelTest, RefusesOneThatWaitsForMemoryOfAnUnreadStream) {
  options.max_sequences = 1;
  const auto unread = submit(greedy_request({5}, std::nullopt));
  const auto waiting = submit(greedy_request({6}, 5));
  EXPECT_TRUE(read_all(*waiting).ids.empty());
  EXPECT_EQ(waiting->finish_reason(), FinishReason::kError);
  EXPECT_THROW(waiting->rethrow(), CapacityError);
  EXPECT_FALSE(unread->finish_reason()) << "the holder continues";
  EXPECT_GE(read_tokens(*unread, 3000).ids.size(), 3000u);
  unread->close();
  EXPECT_EQ(read_all(*submit(greedy_request({6}, 5))).ids, expected_reply({6}, 5));
}

TEST_P(EngineCancelTest, SurvivesAStormOfCancels) {
  engine();
  const auto storm = [&](int32_t salt) {
    for (int32_t i = 0; i < 2500; ++i) {
      const auto stream = submit(greedy_request({salt, i % 200}, i % 3 == 0 ? 5 : 100000));
      if (i % 5 == 0) read_tokens(*stream, static_cast<size_t>(i % 4));
      if (i % 2 == 0)
        stream->cancel();
      else
        stream->close();
    }
  };
  std::thread left(storm, 1), right(storm, 2);
  const auto steady = submit(greedy_request({7}, 2000));
  EXPECT_EQ(read_all(*steady).ids, expected_reply({7}, 2000));
  left.join();
  right.join();
  // Idle alone is not enough: the last submissions may still be queued.
  wait_until([&] { return engine().stats().requests == 5001 && is_idle(); });
}

TEST_P(EngineCancelTest, EndsAllStreamsWhenItIsClosed) {
  options.max_sequences = 2;
  const auto running = submit(greedy_request({5}, std::nullopt));
  const auto parked = submit(greedy_request({6}, std::nullopt));
  const auto waiting = submit(greedy_request({7}, 5));
  read_tokens(*running, 10);
  engine().close();
  for (const auto& stream : {running, parked, waiting}) {
    const Reply reply = read_all(*stream);
    EXPECT_TRUE(reply.has_ended);
    EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
    EXPECT_NO_THROW(stream->rethrow());
  }
  EXPECT_TRUE(is_idle());
}

TEST_P(EngineCancelTest, LeavesStreamsThatOutliveIt) {
  std::shared_ptr<TokenStream> stream;
  {
    ThreadPool threads(1);
    PagePool pool(kShape, 100);
    EngineOptions own = options;
    own.pools = &pool;
    own.kernels = &reference_kernels();
    own.threads = &threads;
    Engine short_lived(model, own);
    stream = short_lived.submit(greedy_request({5}, std::nullopt));
  }
  stream->cancel();
  EXPECT_TRUE(read_all(*stream).has_ended);
}

// ---- work between steps ----------------------------------------------------------------------

TEST_P(EngineCancelTest, RunsWorkBetweenStepsWhileOthersStream) {
  const auto stream = submit(greedy_request({5}, 4000));
  std::thread::id engine_thread;
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int j = 0; j < 100; ++j) {
        engine().between_steps([&] {
          engine_thread = std::this_thread::get_id();  // unguarded: there is one engine thread
          ++done;
        });
      }
    });
  }
  EXPECT_EQ(read_all(*stream).ids, expected_reply({5}, 4000));
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 400);
  EXPECT_NE(engine_thread, std::this_thread::get_id());
}

TEST_P(EngineCancelTest, RunsWorkWhenItIsIdleAndWhenAllAreParked) {
  bool ran = false;
  engine().between_steps([&] { ran = true; });
  EXPECT_TRUE(ran);
  const auto stream = submit(greedy_request({5}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 1; });
  engine().between_steps([&] { ran = false; });
  EXPECT_FALSE(ran);
}

TEST_P(EngineCancelTest, ThrowsWhatWorkThrowsInItsCallerOnly) {
  const auto stream = submit(greedy_request({5}, 500));
  EXPECT_THROW(engine().between_steps([] { throw InvalidArgument("mine"); }), InvalidArgument);
  EXPECT_THROW(engine().between_steps([] { throw 7; }), int);
  EXPECT_EQ(read_all(*stream).ids, expected_reply({5}, 500));
}

TEST_P(EngineCancelTest, RefusesWorkThatComesTooLate) {
  model.gate = &gate;
  const auto stream = submit(greedy_request({5}, 500));
  wait_until([&] { return phase_of(*stream) == Phase::kPrefill; });  // the model is in its forward
  std::thread closer([&] { engine().close(); });
  std::thread caller([&] {
    try {
      engine().between_steps([] {});
    } catch (const EngineDead&) {
    }
  });
  std::this_thread::sleep_for(20ms);
  open_gate();
  closer.join();
  caller.join();
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineCancelTest);

}  // namespace
}  // namespace sinkstream
