#include "engine/token_stream.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <thread>

#include "common/errors.h"

namespace sinkstream {
namespace {

using namespace std::chrono_literals;
using Taken = TokenStream::Taken;

class TokenStreamTest : public testing::Test {
 protected:
  bool put(int32_t id, const std::string& text) {
    stage(id, text);
    return stream.publish({});
  }
  void stage(int32_t id, const std::string& text) {
    stream.staged().text += text;
    stream.stage_token({.token = id, .logprob = -1, .top = {}});
  }
  bool bell_has_rung() { return bell->wait_for(0ns); }

  std::shared_ptr<Doorbell> bell = std::make_shared<Doorbell>();
  std::shared_ptr<WakeList> wake_list = std::make_shared<WakeList>();
  TokenStream stream{bell, wake_list};
  StreamBatch batch;
};

TEST_F(TokenStreamTest, MergesWhatALaggingConsumerHasMissed) {
  put(5, "a");
  put(6, "");
  put(7, "bc");
  EXPECT_EQ(stream.pending_tokens(), 3);
  ASSERT_EQ(stream.take(0s, &batch), Taken::kBatch);
  EXPECT_EQ(batch.text, "abc");
  ASSERT_EQ(batch.tokens.size(), 3u);
  EXPECT_EQ(batch.tokens[1].id, 6);
  EXPECT_EQ(batch.tokens[1].text_bytes, 0u);
  EXPECT_EQ(batch.tokens[2].text_bytes, 2u);
  EXPECT_EQ(stream.take(0s, &batch), Taken::kNothing);
  EXPECT_TRUE(batch.empty());
}

TEST_F(TokenStreamTest, ShowsNothingBeforeItIsPublished) {
  stage(5, "a");
  EXPECT_EQ(stream.take(0s, &batch), Taken::kNothing);
  stream.publish({});
  EXPECT_EQ(stream.take(0s, &batch), Taken::kBatch);
}

TEST_F(TokenStreamTest, KeepsMarksInTheirPlacesAndAddsUpEvictions) {
  using Kind = StreamMark::Kind;
  stream.staged().add_mark(Kind::kStarted, 0);
  stream.publish({});
  stream.staged().add_mark(Kind::kPrefill, 16);
  stream.publish({});
  stream.staged().add_mark(Kind::kPrefill, 20);
  put(5, "a");
  for (int i = 0; i < 3; ++i) {
    stream.staged().add_mark(Kind::kEvicted, 1);
    put(6, "b");
  }
  ASSERT_EQ(stream.take(0s, &batch), Taken::kBatch);
  ASSERT_EQ(batch.marks.size(), 3u);
  EXPECT_EQ(batch.marks[1].kind, Kind::kPrefill);
  EXPECT_EQ(batch.marks[1].count, 20);
  EXPECT_EQ(batch.marks[1].tokens_before, 0u);
  EXPECT_EQ(batch.marks[2].kind, Kind::kEvicted);
  EXPECT_EQ(batch.marks[2].count, 3);
  EXPECT_EQ(batch.marks[2].tokens_before, 3u);
}

// A long prompt reports progress and evictions alternately.
TEST_F(TokenStreamTest, KeepsOneMarkOfEachKindForAConsumerThatLags) {
  using Kind = StreamMark::Kind;
  stream.staged().add_mark(Kind::kStarted, 0);
  for (int64_t chunk = 1; chunk <= 1000; ++chunk) {
    stream.staged().add_mark(Kind::kPrefill, chunk * 16);
    stream.staged().add_mark(Kind::kEvicted, 16);
    stream.publish({});
  }
  ASSERT_EQ(stream.take(0s, &batch), Taken::kBatch);
  ASSERT_EQ(batch.marks.size(), 3u);
  EXPECT_EQ(batch.marks[0].kind, Kind::kStarted);
  EXPECT_EQ(batch.marks[1].count, 16000);
  EXPECT_EQ(batch.marks[2].count, 16000);
  EXPECT_LE(batch.marks.capacity(), 8u);
}

TEST_F(TokenStreamTest, TellsTheProducerWhenItIsFullAndRingsWhenItIsDrained) {
  size_t count = 0;
  while (put(5, "word ")) ++count;
  EXPECT_EQ(count + 1, TokenStream::kMaxPendingTokens);
  EXPECT_TRUE(stream.is_full());
  EXPECT_FALSE(bell_has_rung());
  ASSERT_EQ(stream.take(0s, &batch), Taken::kBatch);
  EXPECT_EQ(batch.tokens.size(), count + 1);
  EXPECT_FALSE(stream.is_full());
  EXPECT_TRUE(bell_has_rung());
}

TEST_F(TokenStreamTest, HoldsLessThan64KilobytesWhenItIsFull) {
  while (put(5, "word ")) {
  }
  ASSERT_EQ(stream.take(0s, &batch), Taken::kBatch);
  const size_t bytes = batch.tokens.capacity() * sizeof(StreamToken) + batch.text.capacity() +
                       batch.top.capacity() * sizeof(TokenLogprob) +
                       batch.marks.capacity() * sizeof(StreamMark);
  EXPECT_LE(bytes, 64u << 10);
}

TEST_F(TokenStreamTest, IsFullOfLongTextAndOfManyAlternativesToo) {
  EXPECT_FALSE(put(5, std::string(TokenStream::kMaxPendingText, 'x')));
  ASSERT_EQ(stream.take(0s, &batch), Taken::kBatch);
  const std::vector<TokenLogprob> top(20);
  size_t count = 0;
  do {
    stream.stage_token({.token = 5, .logprob = -1, .top = top});
    ++count;
  } while (stream.publish({}));
  EXPECT_EQ(count, (TokenStream::kMaxPendingTop + 19) / 20);
}

TEST_F(TokenStreamTest, HandsOverThePromptsTokensAndIsFullOfThem) {
  stream.stage_prompt_token({.token = 5, .logprob = NAN, .top = {}});
  EXPECT_TRUE(stream.publish({}));
  stream.stage_prompt_token({.token = 6, .logprob = -2, .top = {{7, -1}, {6, -2}}});
  EXPECT_TRUE(stream.publish({}));
  ASSERT_EQ(stream.take(0s, &batch), Taken::kBatch);
  ASSERT_EQ(batch.prompt.size(), 2u);
  EXPECT_TRUE(std::isnan(batch.prompt[0].logprob));
  EXPECT_EQ(batch.prompt[1].id, 6);
  EXPECT_EQ(batch.prompt[1].top_count, 2);
  EXPECT_EQ(batch.prompt_top.at(0).id, 7);
  size_t count = 0;
  do {
    stream.stage_prompt_token({.token = 5, .logprob = -1, .top = {}});
    ++count;
  } while (stream.publish({}));
  EXPECT_EQ(count, TokenStream::kMaxPendingTokens);
  EXPECT_TRUE(stream.is_full());
  ASSERT_EQ(stream.take(0s, &batch), Taken::kBatch);
  EXPECT_FALSE(stream.is_full());
}

TEST_F(TokenStreamTest, CompletesAPieceAtItsIntervalOrWhenItIsLong) {
  stage(5, "a");
  EXPECT_TRUE(stream.is_piece_complete(1));
  EXPECT_FALSE(stream.is_piece_complete(2));
  stage(5, "a");
  EXPECT_TRUE(stream.is_piece_complete(2));
  size_t count = 2;
  while (!stream.is_piece_complete(1 << 20)) {
    stage(5, "a");
    ++count;
  }
  EXPECT_EQ(count, TokenStream::kMaxStagedTokens);
}

TEST_F(TokenStreamTest, EndsAfterEverythingWasTaken) {
  put(5, "a");
  stream.finish(FinishReason::kLength, nullptr, {});
  EXPECT_EQ(stream.finish_reason(), FinishReason::kLength);
  EXPECT_EQ(stream.take(1h, &batch), Taken::kBatch);
  EXPECT_EQ(stream.take(1h, &batch), Taken::kEnd);
  EXPECT_EQ(stream.take(1h, &batch), Taken::kEnd);
  EXPECT_NO_THROW(stream.rethrow());
}

TEST_F(TokenStreamTest, GivesTheRestOfTheTextToTheLastTokenOrToTheEnd) {
  stage(5, "a");
  stream.staged().text += "b";
  stream.stage_rest_of_text();
  stream.publish({});
  stream.staged().text += "c";
  stream.stage_rest_of_text();
  stream.finish(FinishReason::kCancelled, nullptr, {});
  ASSERT_EQ(stream.take(0s, &batch), Taken::kBatch);
  EXPECT_EQ(batch.text, "abc");
  EXPECT_EQ(batch.tokens[0].text_bytes, 2u);
}

TEST_F(TokenStreamTest, ThrowsItsErrorInTheConsumer) {
  put(5, "a");
  stream.finish(FinishReason::kError, std::make_exception_ptr(NonFiniteLogits("bad")), {});
  EXPECT_EQ(stream.take(0s, &batch), Taken::kBatch) << "what came before the error is not lost";
  EXPECT_EQ(stream.take(0s, &batch), Taken::kEnd);
  EXPECT_THROW(stream.rethrow(), NonFiniteLogits);
  EXPECT_THROW(stream.rethrow(), NonFiniteLogits) << "on every call";
}

TEST_F(TokenStreamTest, CancelRingsOnceAndLeavesWhatWasProduced) {
  put(5, "a");
  stream.cancel();
  EXPECT_TRUE(stream.is_cancelled());
  EXPECT_TRUE(bell_has_rung());
  stream.cancel();
  EXPECT_FALSE(bell_has_rung());
  EXPECT_EQ(stream.take(0s, &batch), Taken::kBatch);
}

TEST_F(TokenStreamTest, CloseDropsWhatIsPendingAndWhatComesLater) {
  put(5, "a");
  stream.close();
  EXPECT_TRUE(stream.is_cancelled());
  EXPECT_EQ(stream.take(1h, &batch), Taken::kEnd);
  put(6, "b");
  EXPECT_EQ(stream.pending_tokens(), 0);
  stream.finish(FinishReason::kCancelled, nullptr, {});
  EXPECT_EQ(stream.take(1h, &batch), Taken::kEnd);
  EXPECT_EQ(stream.finish_reason(), FinishReason::kCancelled);
}

TEST_F(TokenStreamTest, RefusesASecondConsumerAndServesTheFirst) {
  std::atomic<bool> is_waiting{false};
  std::thread first([&] {
    StreamBatch own;
    is_waiting = true;
    EXPECT_EQ(stream.take(1h, &own), Taken::kBatch);
    EXPECT_EQ(own.text, "a");
  });
  while (!is_waiting) std::this_thread::yield();
  bool is_busy = false;
  while (!is_busy) {  // until the first one is in `take`
    try {
      stream.take(0s, &batch);
    } catch (const SessionBusy&) {
      is_busy = true;
    }
  }
  put(5, "a");
  first.join();
}

TEST_F(TokenStreamTest, WakesAConsumerThatWaits) {
  for (int i = 0; i < 200; ++i) {
    std::thread producer([&] { put(i, "a"); });
    EXPECT_EQ(stream.take(10s, &batch), Taken::kBatch);
    EXPECT_EQ(batch.tokens.front().id, i);
    producer.join();
  }
}

TEST_F(TokenStreamTest, CarriesEverythingInOrderBetweenTwoThreads) {
  constexpr int32_t kTokens = 100000;
  std::thread producer([&] {
    for (int32_t id = 0; id < kTokens; ++id) {
      stage(id, std::string(1, static_cast<char>('a' + id % 26)));
      if (!stream.is_piece_complete(1 + id % 3)) continue;
      if (!stream.publish({.generated_tokens = id})) {
        while (stream.is_full()) bell->wait_for(10ms);
      }
    }
    stream.finish(FinishReason::kLength, nullptr, {});
  });
  int32_t next = 0;
  while (stream.take(10s, &batch) == Taken::kBatch) {
    size_t text_bytes = 0;
    for (const StreamToken& token : batch.tokens) {
      ASSERT_EQ(token.id, next);
      ASSERT_EQ(batch.text[text_bytes], static_cast<char>('a' + next % 26));
      text_bytes += token.text_bytes;
      ++next;
    }
    ASSERT_EQ(text_bytes, batch.text.size());
    if (next % 7 == 0) stream.stats();
  }
  producer.join();
  EXPECT_EQ(next, kTokens);
}

TEST_F(TokenStreamTest, RefusesToServeAForkedChild) {
  const pid_t child = fork();
  if (child == 0) {
    bool is_refused = false;
    try {
      stream.take(1h, &batch);
    } catch (const ForkError&) {
      is_refused = true;
    }
    stream.cancel();
    stream.close();
    _exit(is_refused && !stream.is_cancelled() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(stream.is_cancelled());
}

}  // namespace
}  // namespace sinkstream
