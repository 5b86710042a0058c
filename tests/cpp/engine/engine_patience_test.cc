// How long a sequence waits for memory whose holders are not being read: a second of its own.
#include "engine_fixture.h"

namespace sinkstream {
namespace {

class EnginePatienceTest : public EngineTest {
 protected:
  EnginePatienceTest() { options.max_sequences = 1; }

  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  // Waits until the stream is refused for want of memory.
  static void expect_refusal(TokenStream& stream) {
    EXPECT_TRUE(read_all(stream).ids.empty());
    EXPECT_EQ(stream.finish_reason(), FinishReason::kError);
    EXPECT_THROW(stream.rethrow(), CapacityError);
  }
};

TEST_F(EnginePatienceTest, BeginsForEachWithItsOwnRequest) {
  const auto unread = submit(greedy_request({5}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 1; });
  const Clock::time_point first_began = Clock::now();
  const auto first = submit(greedy_request({6}, 5));
  std::this_thread::sleep_for(600ms);
  const Clock::time_point second_began = Clock::now();
  const auto second = submit(greedy_request({7}, 5));
  expect_refusal(*first);
  EXPECT_GE(seconds_since(first_began), 0.999);
  expect_refusal(*second);
  EXPECT_GE(seconds_since(second_began), 0.999) << "the first one's patience was the second's";
  EXPECT_LT(seconds_since(second_began), 8);
  unread->close();
}

TEST_F(EnginePatienceTest, BeginsWhenTheHolderIsReadNoMore) {
  const auto holder = submit(greedy_request({5}, std::nullopt));
  const auto waiting = submit(greedy_request({6}, 5));
  wait_until([&] { return engine().stats().parked == 1; });
  std::this_thread::sleep_for(100ms);  // some of its patience is gone, and comes back
  const Clock::time_point submitted = Clock::now();
  while (seconds_since(submitted) < 1.3) read_tokens(*holder, 1);
  EXPECT_FALSE(waiting->finish_reason()) << "it was refused although the holder was read";
  const Clock::time_point stuck = Clock::now();
  expect_refusal(*waiting);
  EXPECT_GE(seconds_since(stuck), 0.9) << "waiting while others ran has used its patience up";
  EXPECT_LT(seconds_since(stuck), 8);
  holder->close();
}

}  // namespace
}  // namespace sinkstream
