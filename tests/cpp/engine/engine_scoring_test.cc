// Requests with `prompt_logprobs`: every token of the prompt is scored, in any company.
#include <cmath>
#include <numeric>

#include "engine_fixture.h"

namespace sinkstream {
namespace {

constexpr int64_t kTop = 2;

std::vector<int32_t> prompt_of(int64_t length, int32_t first = 10) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) {
    prompt[static_cast<size_t>(i)] = static_cast<int32_t>((first + 7 * i) % kFakeVocab);
  }
  return prompt;
}

Request scored_request(std::vector<int32_t> prompt, std::optional<int64_t> max_tokens) {
  Request request = greedy_request(std::move(prompt), max_tokens);
  request.params.prompt_logprobs = kTop;
  return request;
}

struct Scores {
  std::vector<PromptToken> tokens;
  std::vector<TokenLogprob> top;
  std::vector<int32_t> reply;
};

Scores read_scores(TokenStream& stream) {
  Scores scores;
  StreamBatch batch;
  while (stream.take(10s, &batch) == TokenStream::Taken::kBatch) {
    scores.tokens.insert(scores.tokens.end(), batch.prompt.begin(), batch.prompt.end());
    scores.top.insert(scores.top.end(), batch.prompt_top.begin(), batch.prompt_top.end());
    for (const StreamToken& token : batch.tokens) scores.reply.push_back(token.id);
  }
  return scores;
}

// The FakeModel's logits are 20 for the token that it predicts and 0 for all others.
void expect_scores_of(const std::vector<int32_t>& prompt, const Scores& scores) {
  ASSERT_EQ(scores.tokens.size(), prompt.size());
  ASSERT_EQ(scores.top.size(), kTop * (prompt.size() - 1));
  const double log_sum_exp = std::log(std::exp(20.0) + kFakeVocab - 1);
  TokenHash hash;
  for (size_t i = 0; i < prompt.size(); ++i) {
    const PromptToken& token = scores.tokens[i];
    EXPECT_EQ(token.id, prompt[i]);
    EXPECT_EQ(token.top_count, i == 0 ? 0 : kTop);
    if (i == 0) {
      EXPECT_TRUE(std::isnan(token.logprob));
    } else {
      const double logit = prompt[i] == hash.next_token() ? 20 : 0;
      EXPECT_FLOAT_EQ(token.logprob, static_cast<float>(logit - log_sum_exp)) << i;
      EXPECT_EQ(scores.top[kTop * (i - 1)].id, hash.next_token()) << i;
    }
    hash.add(prompt[i]);
  }
}

class EngineScoring : public EngineTest {};

TEST_P(EngineScoring, ScoresAPromptLongerThanTheWindowAndReplies) {
  for (const int64_t length : {1, 2, 16, 17, 33, 34, 700}) {
    const std::vector<int32_t> prompt = prompt_of(length);
    const Scores scores = read_scores(*submit(scored_request(prompt, 5)));
    expect_scores_of(prompt, scores);
    EXPECT_EQ(scores.reply, expected_reply(prompt, 5)) << length;
  }
}

TEST_P(EngineScoring, ScoresAPromptWithoutAReply) {
  for (const int64_t length : {1, 2, 100}) {
    const std::vector<int32_t> prompt = prompt_of(length);
    const auto stream = submit(scored_request(prompt, 0));
    const Scores scores = read_scores(*stream);
    expect_scores_of(prompt, scores);
    EXPECT_TRUE(scores.reply.empty());
    EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
    EXPECT_EQ(stream->stats().prompt_tokens, length);
  }
}

TEST_P(EngineScoring, RunsAmongOtherStreamsWithoutChangingThem) {
  const auto endless = submit(greedy_request(prompt_of(5), std::nullopt));
  read_tokens(*endless, 3);
  std::vector<std::shared_ptr<TokenStream>> streams;
  const std::vector<int32_t> plain = prompt_of(90, 3);
  streams.push_back(submit(scored_request(prompt_of(200), 20)));
  streams.push_back(submit(greedy_request(plain, 50)));
  streams.push_back(submit(scored_request(prompt_of(150, 77), 20)));
  expect_scores_of(prompt_of(200), read_scores(*streams[0]));
  EXPECT_EQ(read_all(*streams[1]).ids, expected_reply(plain, 50));
  const Scores last = read_scores(*streams[2]);
  expect_scores_of(prompt_of(150, 77), last);
  EXPECT_EQ(last.reply, expected_reply(prompt_of(150, 77), 20));
  const std::vector<int32_t> ids = read_tokens(*endless, 20).ids;
  const auto count = static_cast<int64_t>(ids.size());
  const std::vector<int32_t> expected = expected_reply(prompt_of(5), 3000);
  EXPECT_NE(std::search(expected.begin(), expected.end(), ids.begin(), ids.end()), expected.end())
      << count << " tokens of the endless stream are not those of its prompt";
  endless->close();
}

TEST_P(EngineScoring, SharesNoPrefixWithASession) {
  const std::vector<int32_t> prompt = prompt_of(50);
  const auto session = engine().open_session(std::nullopt, {});
  read_all(*engine().submit(greedy_request(prompt, 0), session));
  const auto shared = submit(greedy_request(prompt, 1));
  read_all(*shared);
  EXPECT_GT(shared->stats().cached_tokens, 0) << "the test shows nothing";
  const auto stream = submit(scored_request(prompt, 1));
  expect_scores_of(prompt, read_scores(*stream));
  EXPECT_EQ(stream->stats().cached_tokens, 0);
  session->close();
}

TEST_P(EngineScoring, CountsThePromptInItsPenalties) {
  Request request = greedy_request(prompt_of(100), 30);
  request.params.frequency_penalty = 15;
  request.params.repetition_penalty = 1.5;
  const std::vector<int32_t> expected = read_all(*submit(request)).ids;
  request.params.prompt_logprobs = kTop;
  EXPECT_EQ(read_scores(*submit(request)).reply, expected);
}

TEST_P(EngineScoring, ReadsAPromptNoFurtherWhileItsScoresAreNotTaken) {
  const std::vector<int32_t> prompt = prompt_of(10'000);
  const auto unread = submit(scored_request(prompt, 0));
  wait_until([&] { return unread->is_full(); });
  const std::vector<int32_t> other = prompt_of(9, 4);
  EXPECT_EQ(read_all(*submit(greedy_request(other, 100))).ids, expected_reply(other, 100));
  EXPECT_LT(unread->stats().live_tokens + unread->stats().evicted_tokens, 1000);
  expect_scores_of(prompt, read_scores(*unread));
}

TEST_P(EngineScoring, CanBeCancelledWhileItsPromptIsScored) {
  const auto stream = submit(scored_request(prompt_of(10'000), 0));
  wait_until([&] { return stream->is_full(); });
  stream->cancel();
  wait_until([this] { return is_idle(); });
  EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
}

TEST_P(EngineScoring, EndsWithAnErrorAtLogitsThatAreNotFinite) {
  std::vector<int32_t> prompt = prompt_of(60);
  model.poison_token = prompt[40];
  const auto stream = submit(scored_request(prompt, 1));
  const auto other = submit(greedy_request({4, 5, 6}, 50));
  read_scores(*stream);
  try {
    stream->rethrow();
    FAIL() << "no error";
  } catch (const NonFiniteLogits& error) {
    EXPECT_EQ(error.index, 41);
  }
  EXPECT_EQ(read_all(*other).ids, expected_reply({4, 5, 6}, 50));
}

TEST_P(EngineScoring, IsRefusedInASession) {
  const auto session = engine().open_session(std::nullopt, {});
  try {
    engine().submit(scored_request({4, 5}, 1), session);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(
        error.what(),
        "stream: `prompt_logprobs` must be None in a session, but is 2. A session does not "
        "process its earlier tokens again. Use `Model.stream`.");
  }
  session->close();
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineScoring);

}  // namespace
}  // namespace sinkstream
