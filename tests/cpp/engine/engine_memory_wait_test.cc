// How long a sequence waits for memory whose holders are not being read: one second each.
#include "timed_fixture.h"

namespace sinkstream {
namespace {

class EngineMemoryWaitTest : public TimedEngineTest {
 protected:
  EngineMemoryWaitTest() { options.max_sequences = 1; }

  std::shared_ptr<TokenStream> wait_for_memory(int32_t token) {
    auto stream = submit(greedy_request({token}, 5));
    wait_for_iteration();
    return stream;
  }
  // The stream fails for lack of memory after this time, and not before.
  void expect_refusal_after(std::chrono::nanoseconds time, TokenStream& stream) {
    pass(time - 1ns);
    EXPECT_FALSE(stream.finish_reason());
    pass(1ns);
    EXPECT_TRUE(read_all(stream).ids.empty());
    EXPECT_EQ(stream.finish_reason(), FinishReason::kError);
    EXPECT_THROW(stream.rethrow(), CapacityError);
  }
};

TEST_P(EngineMemoryWaitTest, CountsFromEachRequest) {
  const auto unread = submit(greedy_request({5}, std::nullopt));
  wait_until_parked(1);
  const auto first = wait_for_memory(6);
  pass(600ms);
  const auto second = wait_for_memory(7);
  expect_refusal_after(400ms, *first);
  expect_refusal_after(600ms, *second);
  unread->close();
}

TEST_P(EngineMemoryWaitTest, EndsWhenTheHolderIsReadInTime) {
  const auto holder = submit(greedy_request({5}, 3000));
  wait_until_parked(1);
  const auto waiting = wait_for_memory(6);
  pass(1s - 1ns);
  EXPECT_EQ(read_all(*holder).ids.size(), 3000u);
  EXPECT_EQ(read_all(*waiting).ids, expected_reply({6}, 5));
}

TEST_P(EngineMemoryWaitTest, StartsAgainWhenTheHolderIsReadNoMore) {
  const auto holder = submit(greedy_request({5}, std::nullopt));
  wait_until_parked(1);
  const auto waiting = wait_for_memory(6);
  for (int i = 0; i < 3; ++i) {
    pass(999ms);  // nearly all of its wait is over, and starts again
    read_tokens(*holder, 1);
    wait_for_iteration();
    wait_until_parked(1);
  }
  expect_refusal_after(1s, *waiting);
  holder->close();
}

TEST_P(EngineMemoryWaitTest, NamesWhatHoldsTheMemory) {
  options.max_sequences = 3;
  std::vector<std::shared_ptr<Session>> idle = {engine().open_session({}, {})};
  const auto unread = submit(greedy_request({5}, std::nullopt));
  wait_until_parked(1);
  const auto refusal = [&] {
    const auto waiting = submit(greedy_request({6}, std::nullopt));
    wait_for_iteration();
    pass(1s);
    read_all(*waiting);
    try {
      waiting->rethrow();
    } catch (const CapacityError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  idle.push_back(engine().open_session({}, {}));
  EXPECT_NE(refusal().find("held by 2 idle sessions and 1 stream that is not being read."),
            std::string::npos);
  unread->close();
  wait_until([&] { return engine().stats().running == 0; });
  idle.push_back(engine().open_session({}, {}));
  EXPECT_NE(refusal().find("it is held by 3 idle sessions."), std::string::npos);
  for (const auto& session : idle) session->close();
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineMemoryWaitTest);

}  // namespace
}  // namespace sinkstream
