// Replies that follow a grammar: what they hold, how they end, and that other sequences do not
// notice.
#include "engine_fixture.h"
#include "sampling/fake_grammar.h"

namespace sinkstream {
namespace {

class EngineGrammarTest : public EngineTest {
 protected:
  Request constrained(std::vector<int32_t> prompt, std::optional<int64_t> max_tokens,
                      const std::string& source) {
    Request request = greedy_request(std::move(prompt), max_tokens);
    request.grammar = compile_grammar(vocabulary_, {"schema", source});
    return request;
  }

  const std::shared_ptr<GrammarVocabulary> vocabulary_ = std::make_shared<GrammarVocabulary>(
      fake_grammar_library(), *fake_table(), kFakeVocab, std::vector<int32_t>{kEndToken});
};

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineGrammarTest);

TEST_P(EngineGrammarTest, AReplyFollowsItsGrammarAndEndsWithIt) {
  const auto stream = submit(constrained({5, 9}, 50, "40|41|42"));
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.ids, (std::vector<int32_t>{40, 41, 42}));
  EXPECT_EQ(reply.text, text_of(reply.ids));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kStop);
}

TEST_P(EngineGrammarTest, AnEndTokenEndsItWithoutText) {
  const auto stream = submit(constrained({5, 9}, 50, "40|1 $|41"));
  EXPECT_EQ(read_all(*stream).text, text_of({40}));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kStop);
}

TEST_P(EngineGrammarTest, AGrammarThatForbidsNothingChangesNothing) {
  const std::vector<int32_t> prompt(40, 9);  // several chunks
  EXPECT_EQ(read_all(*submit(constrained(prompt, 30, "*|.."))).ids, expected_reply(prompt, 30));
  const auto draw = [&](bool with_grammar) {
    Request request = with_grammar ? constrained(prompt, 30, "*|..") : greedy_request(prompt, 30);
    request.params.temperature = 40;
    request.params.seed = 7;
    request.params.repetition_penalty = 1.3;
    request.params.logit_bias = {{50, 3}};
    return read_all(*submit(std::move(request))).ids;
  };
  EXPECT_EQ(draw(true), draw(false));
}

TEST_P(EngineGrammarTest, MaxTokensEndsItInTheMiddle) {
  const auto stream = submit(constrained({5, 9}, 2, "40|41|42"));
  EXPECT_EQ(read_all(*stream).ids, (std::vector<int32_t>{40, 41}));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
}

TEST_P(EngineGrammarTest, ItHasALimitEvenIfTheRequestHasNone) {  // no tsan
  EXPECT_THROW(submit(constrained({5}, kMaxGrammarTokens + 1, "*|..")), InvalidArgument);
  const auto stream = submit(constrained({5}, {}, "*|.."));
  EXPECT_EQ(read_all(*stream).ids.size(), static_cast<size_t>(kMaxGrammarTokens));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
  const auto session = engine().open_session({}, {});
  EXPECT_THROW(engine().submit(constrained({5}, kMaxGrammarTokens + 1, "*|.."), session),
               InvalidArgument);
}

TEST_P(EngineGrammarTest, AFailureEndsOnlyItsOwnReply) {
  const auto other = submit(greedy_request({6, 7}, 40));
  for (const char* source : {"40|broken", "40|nothing", "stuck"}) {
    const auto stream = submit(constrained({5, 9}, 50, source));
    read_all(*stream);
    EXPECT_EQ(stream->finish_reason(), FinishReason::kError) << source;
    EXPECT_THROW(stream->rethrow(), InvalidArgument);
  }
  EXPECT_EQ(read_all(*other).ids, expected_reply({6, 7}, 40));
}

TEST_P(EngineGrammarTest, ABiasMayNotForbidAllThatTheGrammarAllows) {
  Request request = constrained({5, 9}, 50, "40");
  request.params.logit_bias = {{40, -std::numeric_limits<float>::infinity()}};
  const auto stream = submit(std::move(request));
  read_all(*stream);
  try {
    stream->rethrow();
    ADD_FAILURE() << "nothing is thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "stream: `logit_bias` must leave a token that the grammar allows, but at index 2 "
                 "there is none.");
  }
}

TEST_P(EngineGrammarTest, ManyTogetherReplyAsEachAlone) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  const std::vector<int32_t> long_prompt(50, 9);
  for (int32_t i = 0; i < 8; ++i) {
    const std::vector<int32_t> prompt{i, 5};
    streams.push_back(submit(greedy_request(prompt, 30)));
    streams.push_back(submit(constrained(long_prompt, 30, "*|40 41|*|43|*|.. ")));
  }
  const std::vector<int32_t> alone =
      read_all(*submit(constrained(long_prompt, 30, "*|40 41|*|43|*|.."))).ids;
  EXPECT_EQ(alone.at(3), 43);
  for (int32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(read_all(*streams[2 * i]).ids, expected_reply({i, 5}, 30));
    EXPECT_EQ(read_all(*streams[2 * i + 1]).ids, alone);
  }
}

TEST_P(EngineGrammarTest, ASessionContinuesAfterIt) {
  const auto session = engine().open_session({}, {});
  EXPECT_EQ(read_all(*engine().submit(constrained({5, 9}, 50, "40|41"), session)).ids,
            (std::vector<int32_t>{40, 41}));
  EXPECT_EQ(read_all(*engine().submit(greedy_request({8}, 6), session)).ids,
            expected_reply({5, 9, 40, 41, 8}, 6))
      << "a grammar lives for one reply";
}

TEST_P(EngineGrammarTest, ItCanBeCancelledInTheMiddle) {
  const auto stream = submit(constrained({5}, {}, "*|.."));
  read_tokens(*stream, 20);
  stream->cancel();
  read_all(*stream);
  EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
  wait_until([&] { return is_idle() && GrammarLibrary::Matcher::alive == 0; });
}

TEST_P(EngineGrammarTest, LogprobsAreThoseOfTheModel) {
  Request request = constrained({5, 9}, 1, "40");
  request.params.logprobs = 1;
  const auto stream = submit(std::move(request));
  StreamBatch batch;
  while (batch.tokens.empty()) ASSERT_NE(stream->take(10s, &batch), TokenStream::Taken::kEnd);
  EXPECT_LT(batch.tokens.at(0).logprob, -10) << "the model would not have chosen it";
  ASSERT_EQ(batch.top.size(), 1u);
  EXPECT_EQ(batch.top[0].id, expected_reply({5, 9}, 1).at(0));
}

class EngineGrammarAheadTest : public EngineGrammarTest {};
INSTANTIATE_TEST_SUITE_P(SampledBy, EngineGrammarAheadTest, testing::Values(SampledBy::kDevice));

TEST_P(EngineGrammarAheadTest, OtherSequencesStayOneStepAhead) {
  std::counting_semaphore<1 << 20> gate{0};
  model.gate = &gate;
  const auto other = submit(greedy_request({6, 7}, 60));
  const auto stream = submit(constrained(std::vector<int32_t>(40, 9), 10, "*|.."));
  gate.release(1 << 18);  // both run from the beginning
  EXPECT_EQ(read_all(*stream).ids, expected_reply(std::vector<int32_t>(40, 9), 10));
  EXPECT_EQ(read_all(*other).ids, expected_reply({6, 7}, 60));
  std::string events;
  engine().between_steps([&] { events = runner->events; });
  EXPECT_EQ(events.find("AA"), events.size() - 2) << "it waited for results: " << events;
}

}  // namespace
}  // namespace sinkstream
