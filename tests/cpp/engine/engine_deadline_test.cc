// `timeout_s`: sequences end at their deadline, in any phase.
#include <sys/resource.h>

#include "timed_fixture.h"

namespace sinkstream {
namespace {

class EngineDeadlineTest : public TimedEngineTest {
 protected:
  ~EngineDeadlineTest() override {
    gate.release(1 << 19);
    engine().close();
  }

  static Request request_with(double timeout_s, std::vector<int32_t> prompt = {5}) {
    Request request = greedy_request(std::move(prompt), std::nullopt);
    request.params.timeout_s = timeout_s;
    return request;
  }
  // Waits for the timeout, and returns what there was to read.
  static Reply expect_timeout(TokenStream& stream) {
    const Reply reply = read_all(stream);
    EXPECT_EQ(stream.finish_reason(), FinishReason::kTimeout);
    EXPECT_NO_THROW(stream.rethrow());
    return reply;
  }
  // A sequence that holds the only seat and is not read.
  std::shared_ptr<TokenStream> park_one(Request request) {
    options.max_sequences = 1;
    auto holder = submit(std::move(request));
    wait_until_parked(1);
    return holder;
  }
  std::shared_ptr<TokenStream> park_one() { return park_one(greedy_request({9}, std::nullopt)); }
  // Waits until the model has run three times and blocks before the fourth.
  void run_three() {
    gate.release(3);
    wait_until([&] { return model.forwards == 3; });
  }

  std::counting_semaphore<1 << 20> gate{0};
};

TEST_P(EngineDeadlineTest, EndsASequenceThatRunsWithWhatItHasProduced) {
  const auto stream = submit(request_with(0.1));
  Reply reply = read_tokens(*stream, 5);
  pass(99'999'999ns);
  EXPECT_FALSE(stream->finish_reason());
  pass(1ns);
  const Reply rest = expect_timeout(*stream);
  reply.ids.insert(reply.ids.end(), rest.ids.begin(), rest.ids.end());
  EXPECT_EQ(reply.ids, expected_reply({5}, static_cast<int64_t>(reply.ids.size())));
  EXPECT_EQ(reply.text + rest.text, text_of(reply.ids));
  EXPECT_TRUE(is_idle());
}

TEST_P(EngineDeadlineTest, EndsItWithinOneStep) {
  model.gate = &gate;
  const auto stream = submit(request_with(0.05));
  run_three();
  ManualClock::pass(50ms);
  gate.release(1 << 19);
  expect_timeout(*stream);
  EXPECT_LE(model.forwards, 4 + lookahead());
}

TEST_P(EngineDeadlineTest, EndsASequenceInTheMiddleOfItsPrompt) {
  model.gate = &gate;
  const auto stream = submit(request_with(0.05, std::vector<int32_t>(200, 9)));
  run_three();
  ManualClock::pass(50ms);
  gate.release(1 << 19);
  EXPECT_TRUE(expect_timeout(*stream).ids.empty());
  EXPECT_LE(model.forwards, 4 + lookahead());
}

TEST_P(EngineDeadlineTest, EndsAParkedSequenceWithoutARing) {
  const auto stream = submit(request_with(0.05));
  wait_until_parked(1);
  ManualClock::pass(50ms);  // the engine sleeps, and checks the clock when its wait times out
  wait_until([&] { return stream->finish_reason().has_value(); });
  EXPECT_TRUE(is_idle());
  EXPECT_GE(expect_timeout(*stream).ids.size(), TokenStream::kMaxPendingTokens);
}

TEST_P(EngineDeadlineTest, EndsASequenceThatWaitsForMemoryBeforeItsWaitTimesOut) {
  const auto holder = park_one();
  const auto waiting = submit(request_with(0.2));
  pass(199ms);
  EXPECT_FALSE(waiting->finish_reason());
  pass(1ms);
  EXPECT_TRUE(expect_timeout(*waiting).marks.empty());
  EXPECT_FALSE(holder->finish_reason());
}

TEST_P(EngineDeadlineTest, EndsASequenceWhoseMemoryWaitTimedOutUnseenAsWell) {
  const auto holder = park_one();
  const auto waiting = submit(request_with(0.2));
  wait_for_iteration();
  pass(5s);  // as on a machine that was busy elsewhere
  EXPECT_TRUE(expect_timeout(*waiting).ids.empty());
}

TEST_P(EngineDeadlineTest, LeavesASequenceToItsMemoryWaitIfThatEndsFirst) {
  const auto holder = park_one();
  const auto waiting = submit(request_with(60));
  wait_for_iteration();
  pass(1s);
  EXPECT_TRUE(read_all(*waiting).ids.empty());
  EXPECT_THROW(waiting->rethrow(), CapacityError);
}

TEST_P(EngineDeadlineTest, MakesRoomForTheNextInTheQueue) {
  const auto holder = park_one(request_with(1.5));
  pass(1s);
  const auto waiting = submit(greedy_request({6}, 5));  // which waits at most one second
  wait_for_iteration();
  pass(500ms);
  EXPECT_EQ(read_all(*waiting).ids, expected_reply({6}, 5));
  expect_timeout(*holder);
}

TEST_P(EngineDeadlineTest, CountsFromTheCall) {
  Request late = request_with(5);
  late.called_at = ManualClock::now() - 10s;
  EXPECT_TRUE(expect_timeout(*submit(std::move(late))).ids.empty());
  EXPECT_EQ(model.forwards, 0);
}

TEST_P(EngineDeadlineTest, LeavesNeighboursAlone) {
  const auto short_lived = submit(request_with(0.05));
  const auto steady = submit(greedy_request({6}, 4000));
  Reply reply = read_tokens(*steady, 100);
  pass(1h);
  expect_timeout(*short_lived);
  const Reply rest = read_all(*steady);
  reply.ids.insert(reply.ids.end(), rest.ids.begin(), rest.ids.end());
  EXPECT_EQ(reply.ids, expected_reply({6}, 4000));
}

TEST_P(EngineDeadlineTest, DoesNotTouchWhatHasEndedBefore) {
  Request request = request_with(60);
  request.params.max_tokens = 5;
  const auto stream = submit(std::move(request));
  EXPECT_EQ(read_all(*stream).ids, expected_reply({5}, 5));
  pass(60s);
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
}

TEST_P(EngineDeadlineTest, SleepsUntilItComes) {
  const auto stream = submit(request_with(60));
  wait_until_parked(1);
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

TEST_P(EngineDeadlineTest, RefusesATimeoutThatIsNone) {
  for (const double bad : {0.0, -1.0}) {
    EXPECT_THROW(submit(request_with(bad)), InvalidArgument) << bad;
  }
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineDeadlineTest);

}  // namespace
}  // namespace sinkstream
