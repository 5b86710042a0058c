// Guesses that the host or a runner verifies: Note [Drafts] of engine/drafts.h. Whatever is
// guessed, the reply is the one without guesses, and the session continues exactly.
#include <random>

#include "engine_fixture.h"
#include "sampling/fake_grammar.h"

namespace sinkstream {
namespace {

class EngineSpeculationBase : public EngineTestBase {
 protected:
  explicit EngineSpeculationBase(SampledBy by) : EngineTestBase(by) { options.speculation = 15; }

  // What the model says after `prompt`, wrong at every `wrong_every`th token.
  static std::vector<int32_t> almost(const std::vector<int32_t>& prompt, int64_t count,
                                     int64_t wrong_every) {
    std::vector<int32_t> guess = expected_reply(prompt, count);
    for (int64_t i = wrong_every; i < count; i += wrong_every) {
      int32_t& token = guess[static_cast<size_t>(i)];
      token = (token + 1) % kFakeVocab;
    }
    return guess;
  }

  static Request predicted(std::vector<int32_t> prompt, std::optional<int64_t> tokens,
                           int64_t wrong_every = 7) {
    std::vector<int32_t> prediction = almost(prompt, tokens.value_or(1000), wrong_every);
    Request request = greedy_request(std::move(prompt), tokens);
    request.params.prediction = std::move(prediction);
    return request;
  }
};

class EngineSpeculationTest : public EngineSpeculationBase,
                              public testing::WithParamInterface<SampledBy> {
 protected:
  EngineSpeculationTest() : EngineSpeculationBase(GetParam()) {}
};

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineSpeculationTest);

TEST_P(EngineSpeculationTest, RepliesAreThoseWithoutGuessesFarPastTheWindow) {
  for (const int64_t wrong_every : {1, 2, 5, 7, 40, 2000}) {
    const std::vector<int32_t> prompt = {5, static_cast<int32_t>(wrong_every % kFakeVocab), 6};
    const auto stream = submit(predicted(prompt, 1000, wrong_every));
    const Reply reply = read_all(*stream);
    EXPECT_EQ(reply.ids, expected_reply(prompt, 1000)) << wrong_every;
    EXPECT_EQ(reply.text, text_of(reply.ids));
    const StreamStats stats = stream->stats();
    EXPECT_EQ(stats.generated_tokens, 1000);
    EXPECT_EQ(stats.evicted_tokens, 1002 - 64);
    EXPECT_LE(stats.accepted_tokens, stats.draft_tokens);
    if (wrong_every >= 5) EXPECT_GT(stats.accepted_tokens, 50);
    if (wrong_every < 2000) EXPECT_GT(stats.draft_tokens, stats.accepted_tokens);
  }
}

TEST_P(EngineSpeculationTest, EveryAcceptedGuessSavesAStep) {
  const auto stream = submit(predicted({5, 6, 7}, 500));
  read_all(*stream);
  const StreamStats stats = stream->stats();
  EXPECT_GT(stats.accepted_tokens, 100);
  EXPECT_EQ(model.forwards.load(), 500 - stats.accepted_tokens);
  EXPECT_EQ(engine().stats().draft_tokens, stats.draft_tokens);
  EXPECT_EQ(engine().stats().accepted_tokens, stats.accepted_tokens);
}

TEST_P(EngineSpeculationTest, AReplyThatWasSaidBeforeTakesFewSteps) {
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 9};
  EXPECT_EQ(read_all(*submit(greedy_request(prompt, 600))).ids, expected_reply(prompt, 600));
  const int64_t before = model.forwards.load();
  EXPECT_EQ(read_all(*submit(greedy_request(prompt, 600))).ids, expected_reply(prompt, 600));
  EXPECT_LT(model.forwards.load() - before, 60) << "600 tokens, of which 536 have left the window";
}

TEST_P(EngineSpeculationTest, NothingIsLearnedFromTextsOfAnotherSalt) {
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 9};
  const auto salted = [&](const std::string& salt) {
    Request request = greedy_request(prompt, 100);
    request.cache_salt = salt;
    return request;
  };
  read_all(*submit(salted("a")));
  const auto other = submit(salted("b"));
  EXPECT_EQ(read_all(*other).ids, expected_reply(prompt, 100));
  EXPECT_EQ(other->stats().draft_tokens, 0);
  const auto same = submit(salted("a"));
  read_all(*same);
  EXPECT_GT(same->stats().accepted_tokens, 50);
}

TEST_P(EngineSpeculationTest, ALimitIsNeverPassed) {
  for (int64_t tokens = 1; tokens < 40; ++tokens) {
    const auto stream = submit(predicted({5, 6, 7}, tokens, 2000));
    EXPECT_EQ(read_all(*stream).ids, expected_reply({5, 6, 7}, tokens));
    EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
  }
}

// A reply may end at any token of a row. Its session continues after that token, whatever the row
// has appended after it.
TEST_P(EngineSpeculationTest, AReplyEndsInsideARowAndItsSessionContinuesExactly) {
  options.max_sequences = 2;
  const std::vector<int32_t> whole = expected_reply({5, 6, 7}, 150);
  for (int64_t end = 1; end < 130; end += end < 20 ? 1 : 7) {
    const int32_t stop = whole[static_cast<size_t>(end - 1)];
    if (std::find(whole.begin(), whole.begin() + end - 1, stop) != whole.begin() + end - 1)
      continue;
    const auto session = engine().open_session({}, {});
    Request request = predicted({5, 6, 7}, std::nullopt, 2000);
    request.params.stop_token_ids = {stop};
    const auto stream = engine().submit(request, session);
    std::vector<int32_t> ids = read_all(*stream).ids;
    EXPECT_EQ(ids, std::vector<int32_t>(whole.begin(), whole.begin() + end));
    EXPECT_EQ(session->stats().tokens, end + 2)
        << "the prompt's, and all but the last of the reply";
    ids.insert(ids.begin(), {5, 6, 7});
    ids.push_back(9);
    Request next = predicted(ids, 80);
    next.prompt = {9};
    EXPECT_EQ(read_all(*engine().submit(next, session)).ids, expected_reply(ids, 80));
    session->close();
  }
}

// Of sampler, sinks and window. The fake model needs the token before those that are read again, so
// the windows are no smaller; tests/python/streams/test_speculation.py has smaller ones.
class EngineSpeculationIn
    : public EngineSpeculationBase,
      public testing::WithParamInterface<std::tuple<SampledBy, int64_t, int64_t>> {
 protected:
  EngineSpeculationIn() : EngineSpeculationBase(std::get<0>(GetParam())) {
    options.window = {.sinks = std::get<1>(GetParam()), .window = std::get<2>(GetParam())};
  }
};

TEST_P(EngineSpeculationIn, ASessionGoesBackForksAndContinuesAfterRejectedGuesses) {
  const auto session = engine().open_session({}, {});
  std::vector<int32_t> text = {5, 6, 7};
  const std::vector<int32_t> reply =
      read_all(*engine().submit(predicted(text, 90, 3), session)).ids;
  EXPECT_EQ(reply, expected_reply(text, 90));
  text.insert(text.end(), reply.begin(), reply.end());
  text.push_back(11);
  const auto fork = engine().fork_session(*session);
  const SessionPosition position = engine().position_of(*session);
  for (const auto& one : {session, fork, session}) {
    if (one == session) EXPECT_TRUE(engine().go_back(*session, position, true));
    Request turn = predicted(text, 90, 4);
    turn.prompt = {11};
    const auto stream = engine().submit(turn, one);
    EXPECT_EQ(read_all(*stream).ids, expected_reply(text, 90));
    EXPECT_GT(stream->stats().accepted_tokens, 0);
    EXPECT_GT(stream->stats().draft_tokens, stream->stats().accepted_tokens);
  }
  session->close();
  fork->close();
}

INSTANTIATE_TEST_SUITE_P(Windows, EngineSpeculationIn,
                         testing::Combine(testing::Values(SampledBy::kHost, SampledBy::kDevice),
                                          testing::Values(0, 4, 100),
                                          testing::Values(50, 60, 64, 65, 127)),
                         [](const auto& info) {
                           return cat(name_of(std::get<0>(info.param)), "_sinks_",
                                      std::get<1>(info.param), "_window_", std::get<2>(info.param));
                         });

TEST_P(EngineSpeculationTest, LogProbabilitiesPenaltiesAndDrawsAreThoseWithoutGuesses) {
  int64_t logprobs = 0;  // above 0, the host samples
  const auto request = [&](uint64_t seed, bool guesses) {
    Request made = greedy_request({5, 6, 7}, 120);
    made.params.temperature = 1.5;
    made.params.seed = seed;
    made.params.frequency_penalty = 2;
    made.params.repetition_penalty = 1.3;
    made.params.logprobs = logprobs;
    if (!guesses) made.params.speculation = 0;
    return made;
  };
  const auto read = [&](uint64_t seed, bool guesses) {
    const auto stream = submit(request(seed, guesses));
    StreamBatch batch;
    std::vector<std::pair<int32_t, float>> tokens;
    while (stream->take(10s, &batch) == TokenStream::Taken::kBatch) {
      for (const StreamToken& token : batch.tokens) tokens.emplace_back(token.id, token.logprob);
    }
    return std::pair(tokens, stream->stats().accepted_tokens);
  };
  for (uint64_t seed = 0; seed < 6; ++seed) {
    logprobs = seed % 2 == 0 ? 3 : 0;
    const auto [expected, none] = read(seed, false);
    EXPECT_EQ(none, 0);
    const auto [again, accepted] = read(seed, true);  // the same draws: what was learned is right
    EXPECT_EQ(again, expected);
    EXPECT_GT(accepted, 60);
  }
}

TEST_P(EngineSpeculationTest, AReplyWithAGrammarIsThatWithoutGuesses) {
  const auto vocabulary = std::make_shared<GrammarVocabulary>(
      fake_grammar_library(), *fake_table(), kFakeVocab, std::vector<int32_t>{kEndToken});
  const auto read = [&](const std::string& source, std::vector<int32_t> prediction) {
    Request request = greedy_request({5, 6, 7}, 50);
    request.grammar = compile_grammar(vocabulary, {"schema", source});
    request.params.speculation = prediction.empty() ? 0 : 15;
    request.params.logprobs = 2;
    request.params.prediction = std::move(prediction);
    const auto stream = submit(request);
    const std::vector<int32_t> ids = read_all(*stream).ids;
    EXPECT_EQ(stream->finish_reason(), FinishReason::kStop) << source;
    return std::pair(ids, stream->stats());
  };
  for (const std::string source : {"40|41|42|43|44", "40|41 42|43|44 45|46",
                                   "40|50 51 52 53 54 55|60|61|*|70|71", "9|*|8|7|6"}) {
    const auto [expected, none] = read(source, {});
    EXPECT_EQ(none.draft_tokens, 0);
    const auto [ids, stats] = read(source, expected);
    EXPECT_EQ(ids, expected) << source;
    EXPECT_GT(stats.accepted_tokens, 0) << source;
    std::vector<int32_t> wrong = expected;
    wrong[2] = 100;  // which the grammar forbids, or the model does not say
    EXPECT_EQ(read(source, wrong).first, expected) << source;
  }
}

TEST_P(EngineSpeculationTest, AStopStringEndsAReplyInsideARow) {
  const std::vector<int32_t> whole = expected_reply({5, 6, 7}, 60);
  for (size_t end = 10; end < 50; ++end) {
    const std::string stop = text_of({whole[end - 2], whole[end - 1], whole[end]});
    const auto read = [&](int64_t speculation) {
      Request request = predicted({5, 6, 7}, 60, 2000);
      request.params.stop = {stop};
      request.params.speculation = speculation;
      const auto stream = submit(request);
      const std::string text = read_all(*stream).text;
      return std::tuple(text, stream->finish_reason(), stream->stats().generated_tokens);
    };
    if (!stop.empty()) EXPECT_EQ(read(15), read(0)) << end;
  }
}

TEST_P(EngineSpeculationTest, ALogitThatIsNotANumberEndsAReplyInsideARow) {
  const std::vector<int32_t> whole = expected_reply({5, 6, 7}, 60);
  for (size_t at = 5; at < 40; at += 3) {
    if (std::find(whole.begin(), whole.end(), whole[at]) !=
        whole.begin() + static_cast<int64_t>(at))
      continue;
    engine().between_steps([&] { model.poison_token = whole[at]; });
    const auto stream = submit(predicted({5, 6, 7}, 60, 2000));
    EXPECT_EQ(read_all(*stream).ids,
              std::vector<int32_t>(whole.begin(), whole.begin() + static_cast<int64_t>(at) + 1));
    EXPECT_EQ(stream->finish_reason(), FinishReason::kError);
  }
}

TEST_P(EngineSpeculationTest, AStreamThatIsCancelledOrNotReadContinuesExactly) {
  const auto unread = submit(predicted({5, 6, 7}, 9000, 50));
  wait_until([&] { return engine().stats().parked == 1; });
  const auto session = engine().open_session({}, {});
  const auto cancelled = engine().submit(predicted({8, 9, 10}, 2000, 50), session);
  read_tokens(*cancelled, 40);
  cancelled->cancel();
  read_all(*cancelled);
  std::vector<int32_t> ids = engine().ids_of(*session, true);
  const std::vector<int32_t> expected = expected_reply({8, 9, 10}, std::ssize(ids) - 3);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), ids.begin() + 3));
  ids.push_back(11);
  EXPECT_EQ(read_all(*engine().submit(greedy_request({11}, 80), session)).ids,
            expected_reply(ids, 80));
  session->close();
  EXPECT_EQ(read_all(*unread).ids, expected_reply({5, 6, 7}, 9000));
}

TEST_P(EngineSpeculationTest, CompanyChangesNoReply) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int32_t i = 0; i < 12; ++i) {
    Request request = predicted(std::vector<int32_t>(3 + 9 * static_cast<size_t>(i), i), 90, 2 + i);
    if (i % 4 == 1) request.params.logprobs = 2;
    if (i % 4 == 2) request.params.prompt_logprobs = 2;
    if (i % 4 == 3) request.params.speculation = i;
    streams.push_back(submit(request));
  }
  for (int32_t i = 0; i < 12; ++i) {
    const std::vector<int32_t> prompt(3 + 9 * static_cast<size_t>(i), i);
    EXPECT_EQ(read_all(*streams[static_cast<size_t>(i)]).ids, expected_reply(prompt, 90)) << i;
  }
}

TEST_P(EngineSpeculationTest, DraftsByPriceChangeNoReply) {
  options.speculation = std::nullopt;
  for (int64_t round = 0; round < 5; ++round) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (int32_t i = 0; i < round; ++i) streams.push_back(submit(predicted({5, 6, i}, 300, 40)));
    for (int32_t i = 0; i < round; ++i) {
      EXPECT_EQ(read_all(*streams[static_cast<size_t>(i)]).ids, expected_reply({5, 6, i}, 300));
    }
  }
  EXPECT_EQ(engine().stats().draft_tokens > 0, GetParam() == SampledBy::kHost)
      << "what drafts cost on a device was not measured";
}

TEST_P(EngineSpeculationTest, WhereNothingIsGuessedNothingIsDrafted) {
  options.speculation = 0;
  const auto stream = submit(predicted({5, 6, 7}, 100, 2000));
  EXPECT_EQ(read_all(*stream).ids, expected_reply({5, 6, 7}, 100));
  EXPECT_EQ(stream->stats().draft_tokens, 0);
  EXPECT_EQ(model.forwards.load(), 100);
}

}  // namespace
}  // namespace sinkstream
