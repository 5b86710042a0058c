// The bell of an event loop, and when streams and the engine ring it.
#include "engine/loop_bell.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine_fixture.h"
#include "heap/heap.h"

namespace sinkstream {
namespace {

// How often it has rung since the last call.
uint64_t rings(const LoopBell& bell) {
  eventfd_t count = 0;
  return eventfd_read(bell.fd(), &count) == 0 ? count : 0;
}

bool is_readable(const LoopBell& bell, int timeout_ms) {
  pollfd watched{.fd = bell.fd(), .events = POLLIN, .revents = 0};
  return poll(&watched, 1, timeout_ms) == 1;
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(LoopBell, IsReadableFromARingToTheNextClear) {
  LoopBell bell;
  EXPECT_FALSE(is_readable(bell, 0));
  bell.clear();
  bell.ring();
  bell.ring();
  EXPECT_TRUE(is_readable(bell, 0));
  EXPECT_TRUE(is_readable(bell, 0));
  bell.clear();
  EXPECT_FALSE(is_readable(bell, 0));
}

TEST(LoopBell, IsNotInheritedByOtherPrograms) {
  LoopBell bell;
  EXPECT_EQ(fcntl(bell.fd(), F_GETFD), FD_CLOEXEC);
}

TEST(LoopBell, KeepsARingThatAForkedChildClears) {
  LoopBell bell;
  bell.ring();
  const pid_t child = fork();
  if (child == 0) {
    bell.clear();
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(is_readable(bell, 0));
}

TEST(WakeList, RingsEachBellOnceAndForgetsIt) {
  const auto left = std::make_shared<LoopBell>(), right = std::make_shared<LoopBell>();
  WakeList list;
  for (int i = 0; i < 3; ++i) {
    list.add(left);
    list.add(right);
  }
  EXPECT_EQ(rings(*left), 0u);
  list.ring_all();
  list.ring_all();
  EXPECT_EQ(rings(*left), 1u);
  EXPECT_EQ(rings(*right), 1u);
  EXPECT_EQ(left.use_count(), 1);
}

TEST(WakeList, RingsAtOnceWhereThereIsNoMemory) {
  const auto bell = std::make_shared<LoopBell>();
  WakeList list;
  fail_allocations(0, 1);
  list.add(bell);
  EXPECT_EQ(rings(*bell), 1u);
}

class LoopBellOfAStreamTest : public testing::Test {
 protected:
  // Publishes a token, as a step of the engine does.
  void put(int32_t id) {
    stream.stage_token({.token = id, .logprob = -1, .top = {}});
    stream.publish({});
    wake_list->ring_all();
  }

  std::shared_ptr<WakeList> wake_list = std::make_shared<WakeList>();
  TokenStream stream{std::make_shared<Doorbell>(), wake_list};
  std::shared_ptr<LoopBell> bell = std::make_shared<LoopBell>();
  StreamBatch batch;
};

TEST_F(LoopBellOfAStreamTest, RingsOnceForAllThatComes) {
  EXPECT_FALSE(stream.is_ready());
  EXPECT_TRUE(stream.ring_when_ready(bell));
  EXPECT_EQ(rings(*bell), 0u);
  for (int32_t id = 0; id < 3; ++id) put(id);
  EXPECT_TRUE(stream.is_ready());
  EXPECT_EQ(rings(*bell), 1u);
  EXPECT_EQ(stream.take(0s, &batch), TokenStream::Taken::kBatch);
  EXPECT_FALSE(stream.is_ready());
  put(3);
  EXPECT_EQ(rings(*bell), 0u) << "ring_when_ready was not called again";
}

TEST_F(LoopBellOfAStreamTest, IsNotRungIfSomethingIsPendingAlready) {
  put(5);
  EXPECT_FALSE(stream.ring_when_ready(bell));
  put(6);
  EXPECT_EQ(rings(*bell), 0u);
  EXPECT_EQ(bell.use_count(), 1) << "the stream has kept it";
}

TEST_F(LoopBellOfAStreamTest, RingsAtTheEnd) {
  EXPECT_TRUE(stream.ring_when_ready(bell));
  stream.finish(FinishReason::kLength, nullptr, {});
  wake_list->ring_all();
  EXPECT_EQ(rings(*bell), 1u);
  EXPECT_FALSE(stream.ring_when_ready(bell)) << "the end stays";
}

TEST_F(LoopBellOfAStreamTest, RingsAtOnceWhenTheStreamIsClosed) {
  EXPECT_TRUE(stream.ring_when_ready(bell));
  stream.close();
  EXPECT_EQ(rings(*bell), 1u);
  EXPECT_TRUE(stream.is_ready());
}

TEST_F(LoopBellOfAStreamTest, IsReplacedByTheBellOfAnotherLoop) {
  const auto other = std::make_shared<LoopBell>();
  EXPECT_TRUE(stream.ring_when_ready(bell));
  EXPECT_TRUE(stream.ring_when_ready(other));
  put(5);
  EXPECT_EQ(rings(*bell), 0u);
  EXPECT_EQ(rings(*other), 1u);
}

TEST_F(LoopBellOfAStreamTest, StaysOpenUntilTheLastOwnerReleasesIt) {
  const int fd = bell->fd();
  EXPECT_TRUE(stream.ring_when_ready(bell));
  bell.reset();
  EXPECT_TRUE(is_open(fd)) << "the loop is gone, but the stream may still ring";
  put(5);
  EXPECT_FALSE(is_open(fd));
}

TEST_F(LoopBellOfAStreamTest, IsRefusedToAForkedChild) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      stream.ring_when_ready(bell);
    } catch (const ForkError&) {
      _exit(0);
    }
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

class LoopBellOfAnEngineTest : public EngineTest {
 protected:
  ~LoopBellOfAnEngineTest() override {
    last_forward = kAnyForward;
    engine().close();
  }

  static constexpr int64_t kAnyForward = std::numeric_limits<int64_t>::max();
  std::shared_ptr<LoopBell> bell = std::make_shared<LoopBell>();
  std::atomic<int64_t> last_forward{kAnyForward};  // the model waits after it
};

TEST_P(LoopBellOfAnEngineTest, RingsOnceAStepWhenAllStreamsHaveOutput) {
  model.before_results = [&](int64_t forward) {
    while (forward > last_forward) std::this_thread::yield();
  };
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int32_t i = 0; i < 4; ++i) streams.push_back(submit(greedy_request({i}, std::nullopt)));
  wait_until([&] { return engine().stats().running == 4; });
  for (int round = 0; round < 50; ++round) {
    engine().between_steps([&] {  // so that the next step has output for all of them
      StreamBatch batch;
      for (const auto& stream : streams) {
        stream->take(0s, &batch);
        EXPECT_TRUE(stream->ring_when_ready(bell));
      }
      EXPECT_EQ(rings(*bell), 0u);
      last_forward = model.forwards.load();
    });
    EXPECT_TRUE(is_readable(*bell, 10000));
    for (const auto& stream : streams) EXPECT_TRUE(stream->is_ready());
    EXPECT_EQ(rings(*bell), 1u);
    last_forward = kAnyForward;
    if (HasFailure()) return;
  }
}

TEST_P(LoopBellOfAnEngineTest, RingsForAStreamThatIsCancelledWhileItWaitsForMemory) {
  options.max_sequences = 1;
  const auto holder = submit(greedy_request({5}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 1; });
  const auto waiting = submit(greedy_request({6}, 5));
  ASSERT_TRUE(waiting->ring_when_ready(bell));
  waiting->cancel();
  ASSERT_TRUE(is_readable(*bell, 10000));
  EXPECT_EQ(waiting->finish_reason(), FinishReason::kCancelled);
}

TEST_P(LoopBellOfAnEngineTest, RingsForAStreamThatIsRefusedMemory) {
  options.max_sequences = 1;
  const auto holder = submit(greedy_request({5}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 1; });
  const auto waiting = submit(greedy_request({6}, 5));
  ASSERT_TRUE(waiting->ring_when_ready(bell));
  ASSERT_TRUE(is_readable(*bell, 10000));
  EXPECT_THROW(waiting->rethrow(), CapacityError);
}

TEST_P(LoopBellOfAnEngineTest, RingsWhenTheEngineFails) {
  std::atomic<bool> is_armed{false};
  model.before_forward = [&](int64_t) {
    while (!is_armed) std::this_thread::yield();
    throw std::runtime_error("the model is broken");
  };
  const auto stream = submit(greedy_request({5}, std::nullopt));
  StreamBatch batch;
  ASSERT_EQ(stream->take(10s, &batch), TokenStream::Taken::kBatch) << "the started mark";
  ASSERT_TRUE(stream->ring_when_ready(bell));
  is_armed = true;
  ASSERT_TRUE(is_readable(*bell, 10000));
  EXPECT_THROW(stream->rethrow(), EngineDead);
}

TEST_P(LoopBellOfAnEngineTest, RingsWhenTheEngineIsClosed) {
  options.max_sequences = 1;
  const auto holder = submit(greedy_request({5}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 1; });
  const auto waiting = submit(greedy_request({6}, 5));
  ASSERT_TRUE(waiting->ring_when_ready(bell));
  engine().close();
  EXPECT_EQ(rings(*bell), 1u);
}

SINKSTREAM_TEST_BOTH_SAMPLERS(LoopBellOfAnEngineTest);

}  // namespace
}  // namespace sinkstream
