// `timeout_s`: sequences that end at their deadline, whatever they are doing then.
#include <sys/resource.h>

#include "engine_fixture.h"

namespace sinkstream {
namespace {

class EngineDeadlineTest : public EngineTest {
 protected:
  // Seconds: by then a stream is full, under a sanitizer and on a busy machine, too.
  static constexpr double kLongEnoughToPark = 4;

  ~EngineDeadlineTest() override {
    gate.release(1 << 19);
    engine().close();
  }

  static Request request_with(double timeout_s, std::vector<int32_t> prompt = {5}) {
    Request request = greedy_request(std::move(prompt), std::nullopt);
    request.params.timeout_s = timeout_s;
    return request;
  }
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  // Waits for an end at its deadline, and returns what there was to read.
  static Reply expect_timeout(TokenStream& stream) {
    const Reply reply = read_all(stream);
    EXPECT_EQ(stream.finish_reason(), FinishReason::kTimeout);
    EXPECT_NO_THROW(stream.rethrow());
    return reply;
  }
  // A sequence that holds the only place, and is not read.
  std::shared_ptr<TokenStream> park_one() {
    options.max_sequences = 1;
    auto holder = submit(greedy_request({9}, std::nullopt));
    wait_until([&] { return engine().stats().parked == 1; });
    return holder;
  }

  std::counting_semaphore<1 << 20> gate{0};
};

TEST_F(EngineDeadlineTest, EndsASequenceThatRunsWithWhatItHasProduced) {
  model.before_forward = [](int64_t) { std::this_thread::sleep_for(1ms); };
  const Clock::time_point begin = Clock::now();
  const auto stream = submit(request_with(0.1));
  const Reply reply = expect_timeout(*stream);
  EXPECT_GE(seconds_since(begin), 0.1);
  EXPECT_LT(seconds_since(begin), 5);
  EXPECT_GE(reply.ids.size(), 5u);
  EXPECT_EQ(reply.ids, expected_reply({5}, static_cast<int64_t>(reply.ids.size())));
  EXPECT_EQ(reply.text, text_of(reply.ids));
  EXPECT_TRUE(is_idle());
}

TEST_F(EngineDeadlineTest, EndsItWithinOneStep) {
  model.gate = &gate;
  const auto stream = submit(request_with(0.05));
  gate.release(3);
  std::this_thread::sleep_for(100ms);
  gate.release(1 << 19);
  expect_timeout(*stream);
  EXPECT_LE(model.forwards, 4);
}

TEST_F(EngineDeadlineTest, EndsASequenceInTheMiddleOfItsPrompt) {
  model.gate = &gate;
  const auto stream = submit(request_with(0.05, std::vector<int32_t>(200, 9)));
  gate.release(3);
  std::this_thread::sleep_for(100ms);
  gate.release(1 << 19);
  EXPECT_TRUE(expect_timeout(*stream).ids.empty());
  EXPECT_LE(model.forwards, 4);
}

TEST_F(EngineDeadlineTest, EndsAParkedSequenceThoughNobodyRings) {
  const auto stream = submit(request_with(kLongEnoughToPark));
  wait_until([&] { return engine().stats().parked == 1; });
  wait_until([&] { return stream->finish_reason().has_value(); });
  EXPECT_TRUE(is_idle());
  EXPECT_GE(expect_timeout(*stream).ids.size(), TokenStream::kMaxPendingTokens);
}

TEST_F(EngineDeadlineTest, EndsASequenceThatWaitsForMemoryBeforeItsPatienceDoes) {
  const auto holder = park_one();
  const Clock::time_point begin = Clock::now();
  const auto waiting = submit(request_with(0.2));
  EXPECT_TRUE(expect_timeout(*waiting).marks.empty());
  EXPECT_GE(seconds_since(begin), 0.2);
  EXPECT_FALSE(holder->finish_reason());
}

TEST_F(EngineDeadlineTest, LeavesASequenceWithoutMemoryToItsPatienceIfThatEndsFirst) {
  const auto holder = park_one();
  const auto waiting = submit(request_with(60));
  EXPECT_TRUE(read_all(*waiting).ids.empty());
  EXPECT_THROW(waiting->rethrow(), CapacityError);
}

TEST_F(EngineDeadlineTest, MakesRoomForWhoWaitsBehindIt) {
  options.max_sequences = 1;
  const Clock::time_point begin = Clock::now();
  const auto holder = submit(request_with(kLongEnoughToPark));
  wait_until([&] { return engine().stats().parked == 1; });
  std::this_thread::sleep_until(begin + 3500ms);  // the patience of who waits is one second
  const auto waiting = submit(greedy_request({6}, 5));
  EXPECT_EQ(read_all(*waiting).ids, expected_reply({6}, 5));
  expect_timeout(*holder);
}

TEST_F(EngineDeadlineTest, CountsFromTheCall) {
  Request late = request_with(5);
  late.called = Clock::now() - 10s;
  EXPECT_TRUE(expect_timeout(*submit(std::move(late))).ids.empty());
  EXPECT_EQ(model.forwards, 0);
}

TEST_F(EngineDeadlineTest, LeavesNeighboursAlone) {
  model.before_forward = [](int64_t) { std::this_thread::sleep_for(100us); };
  const auto short_lived = submit(request_with(0.05));
  const auto steady = submit(greedy_request({6}, 1000));
  EXPECT_EQ(read_all(*steady).ids, expected_reply({6}, 1000));
  expect_timeout(*short_lived);
}

TEST_F(EngineDeadlineTest, DoesNotTouchWhatHasEndedBefore) {
  Request request = request_with(60);
  request.params.max_tokens = 5;
  const auto stream = submit(std::move(request));
  EXPECT_EQ(read_all(*stream).ids, expected_reply({5}, 5));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
}

TEST_F(EngineDeadlineTest, SleepsUntilItComes) {
  const auto stream = submit(request_with(60));
  wait_until([&] { return engine().stats().parked == 1; });
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

TEST_F(EngineDeadlineTest, RefusesATimeoutThatIsNone) {
  for (const double bad : {0.0, -1.0}) {
    EXPECT_THROW(submit(request_with(bad)), InvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace sinkstream
