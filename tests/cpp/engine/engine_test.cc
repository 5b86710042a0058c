// What an engine returns: the right tokens for every stream, whatever else is in the batch.
#include "engine_fixture.h"

namespace sinkstream {
namespace {

using Kind = StreamMark::Kind;

std::vector<int32_t> prompt_of(int64_t length, int32_t salt = 0) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<int32_t>((i * 7 + salt * 13 + 5) % kFakeVocab));
  }
  return prompt;
}

TEST_P(EngineTest, GivesTheModelsTokensAndTheirText) {
  const auto prompt = prompt_of(5);
  const auto stream = submit(greedy_request(prompt, 200));
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.ids, expected_reply(prompt, 200));
  EXPECT_EQ(reply.text, text_of(reply.ids));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
}

TEST_P(EngineTest, ReadsPromptsOfAnyLengthInChunks) {
  for (const int64_t length : {1, 2, 15, 16, 17, 64, 65, 640}) {
    const auto prompt = prompt_of(length);
    EXPECT_EQ(read_all(*submit(greedy_request(prompt, 20))).ids, expected_reply(prompt, 20));
  }
}

TEST_P(EngineTest, GivesEachStreamTheSameAsAlone) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 12; ++i) {
    streams.push_back(submit(greedy_request(prompt_of(1 + 37 * (i % 5), i), 30 + i)));
  }
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(read_all(*streams[i]).ids, expected_reply(prompt_of(1 + 37 * (i % 5), i), 30 + i));
  }
  EXPECT_GT(model.widest, 1) << "no sequences ran in one batch";
}

TEST_P(EngineTest, WorksWithABudgetSmallerThanItsSequences) {
  model.max_tokens_ = 2;
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(submit(greedy_request(prompt_of(9, i), 25)));
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(read_all(*streams[i]).ids, expected_reply(prompt_of(9, i), 25));
  }
}

TEST_P(EngineTest, RunsEndlesslyInItsMemory) {
  const auto stream = submit(greedy_request(prompt_of(3), std::nullopt));
  const Reply reply = read_tokens(*stream, 20000);
  EXPECT_EQ(reply.ids, expected_reply(prompt_of(3), static_cast<int64_t>(reply.ids.size())));
  const StreamStats stats = stream->stats();
  EXPECT_EQ(stats.live_tokens, 64);
  EXPECT_EQ(stats.phase == Phase::kDecode || stats.phase == Phase::kParked, true);
  stream->cancel();
}

TEST_P(EngineTest, ReportsItsProgressInOrder) {
  const auto stream = submit(greedy_request(prompt_of(40), 30));
  const Reply reply = read_all(*stream);
  ASSERT_GE(reply.marks.size(), 3u);
  EXPECT_EQ(reply.marks[0].kind, Kind::kStarted);
  int64_t read = 0, evicted = 0;
  for (const StreamMark& mark : reply.marks) {
    if (mark.kind == Kind::kPrefill) {
      EXPECT_GT(mark.count, read);
      EXPECT_EQ(mark.tokens_before, 0u);
      read = mark.count;
    }
    if (mark.kind == Kind::kEvicted) {
      evicted += mark.count;
      // 40 + 24 tokens fill the cache; the 25th is sampled before anything is evicted.
      EXPECT_GE(mark.tokens_before, 25u);
    }
  }
  EXPECT_EQ(read, 40);
  EXPECT_EQ(evicted, 40 + 29 - 64) << "the last token never enters the cache";
  EXPECT_EQ(stream->stats().evicted_tokens, evicted);
}

TEST_P(EngineTest, CountsAndTimesEachStream) {
  const auto stream = submit(greedy_request(prompt_of(10), 50));
  read_all(*stream);
  const StreamStats stats = stream->stats();
  EXPECT_EQ(stats.phase, Phase::kFinished);
  EXPECT_EQ(stats.prompt_tokens, 10);
  EXPECT_EQ(stats.generated_tokens, 50);
  EXPECT_EQ(stats.cached_tokens, 0);
  EXPECT_EQ(stats.live_tokens, 59);
  EXPECT_EQ(stats.cache_bytes,
            SequenceCache::memory_needed(options.window, kLayers, 60).pages[0] * kShape.bytes());
  EXPECT_GT(stats.first_token_s, 0);
  EXPECT_EQ(stats.decode_gaps, 49);
  EXPECT_GT(stats.decode_s, 0);
  EXPECT_GT(stream->gap_quantile_s(0.99), 0);
}

TEST_P(EngineTest, CountsItsOwnWork) {
  read_all(*submit(greedy_request(prompt_of(40), 30)));
  const EngineStats stats = engine().stats();
  EXPECT_EQ(stats.requests, 1);
  EXPECT_EQ(stats.prompt_tokens, 40);
  EXPECT_EQ(stats.generated_tokens, 30);
  EXPECT_EQ(stats.evicted_tokens, 5);
  wait_until([&] { return engine().stats().steps == model.forwards; });
  const auto records = engine().steps_since(1);
  ASSERT_EQ(static_cast<int64_t>(records.size()), model.forwards - 1);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_LE(records[i].begin, records[i].forward_end);
    EXPECT_LE(records[i].forward_end, records[i].end);
  }
  EXPECT_GT(engine().stats().step_p50_s, 0);
}

TEST_P(EngineTest, HasGivenItsMemoryBackWhenAStreamEnds) {
  for (int i = 0; i < 100; ++i) {
    read_all(*submit(greedy_request(prompt_of(3), 2)));
    EXPECT_TRUE(is_idle()) << "nothing to wait for";
  }
}

TEST_P(EngineTest, EndsWithoutATokenWhereNoneIsWanted) {
  const auto stream = submit(greedy_request(prompt_of(3), 0));
  const Reply reply = read_all(*stream);
  EXPECT_TRUE(reply.ids.empty());
  EXPECT_EQ(reply.marks.size(), 1u);
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
  EXPECT_EQ(stream->stats().prompt_tokens, 3);
  EXPECT_EQ(model.forwards, 0);
}

// A prompt whose expected reply has the token at index `at`, and not before.
std::vector<int32_t> prompt_with_token_at(int32_t token, int64_t at) {
  for (int32_t salt = 0;; ++salt) {
    const std::vector<int32_t> prompt{salt % 300, salt / 300};
    const auto reply = expected_reply(prompt, at + 1);
    if (std::find(reply.begin(), reply.end(), token) == reply.end() - 1) return prompt;
  }
}

TEST_P(EngineTest, StopsAtAnEndTokenAndShowsNoTextOfIt) {
  const auto prompt = prompt_with_token_at(kEndToken, 6);
  Request request = greedy_request(prompt, 50);
  request.params.ignore_eos = false;
  const auto stream = submit(request);
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.ids, expected_reply(prompt, 7));
  EXPECT_EQ(reply.text, text_of(expected_reply(prompt, 6)));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kStop);
}

TEST_P(EngineTest, ContinuesPastAnEndTokenThatItIgnores) {
  const auto prompt = prompt_with_token_at(kEndToken, 6);
  const Reply reply = read_all(*submit(greedy_request(prompt, 50)));
  EXPECT_EQ(reply.ids, expected_reply(prompt, 50));
  EXPECT_EQ(reply.text, text_of(reply.ids));
}

TEST_P(EngineTest, NeverShowsAnEndTokenEvenIfTheTokenizerCallsItText) {
  options.end_token_ids = {50};
  const auto prompt = prompt_with_token_at(50, 6);
  const Reply reply = read_all(*submit(greedy_request(prompt, 8)));
  auto shown = expected_reply(prompt, 8);
  shown.erase(std::remove(shown.begin(), shown.end(), 50), shown.end());
  EXPECT_EQ(reply.text, text_of(shown));
}

TEST_P(EngineTest, StopsAtAStopTokenEvenWhereEndTokensAreIgnored) {
  const auto prompt = prompt_with_token_at(99, 4);
  Request request = greedy_request(prompt, 50);
  request.params.stop_token_ids = {99, 2};
  const auto stream = submit(request);
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.ids, expected_reply(prompt, 5));
  EXPECT_EQ(reply.text, text_of(expected_reply(prompt, 4)));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kStop);
}

TEST_P(EngineTest, StopsBeforeAStopStringOverSeveralTokens) {
  const auto prompt = prompt_of(3);
  const auto expected = expected_reply(prompt, 40);
  for (size_t from = 0; from < 30; ++from) {
    const std::string all = text_of(expected);
    const std::string stop = text_of({expected.begin() + static_cast<int64_t>(from),
                                      expected.begin() + static_cast<int64_t>(from) + 3});
    if (stop.empty()) continue;
    Request request = greedy_request(prompt, 40);
    request.params.stop = {stop, "\xF0\x9F\x8E\xB5"};
    const auto stream = submit(request);
    const Reply reply = read_all(*stream);
    EXPECT_EQ(reply.text, all.substr(0, all.find(stop)));
    EXPECT_EQ(stream->finish_reason(), FinishReason::kStopString);
  }
}

TEST_P(EngineTest, ShowsWhatWasHeldBackWhenTheReplyEndsOnLength) {
  const auto prompt = prompt_of(3);
  const auto expected = expected_reply(prompt, 10);
  Request request = greedy_request(prompt, 10);
  request.params.stop = {text_of({expected[8], expected[9]}) + "and more"};
  const auto stream = submit(request);
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.text, text_of(expected));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
}

TEST_P(EngineTest, DeliversSeveralTokensTogetherWhereAskedTo) {
  for (const int64_t interval : {2, 7, 100}) {
    std::counting_semaphore<1 << 20> gate{0};
    model.gate = &gate;
    Request request = greedy_request(prompt_of(3), 24);
    request.params.stream_interval = interval;
    const auto stream = submit(request);
    std::vector<int64_t> pieces;
    StreamBatch batch;
    // One permit at a time, so that no batches are merged by a lagging consumer.
    for (int step = 0; step < 24; ++step) {
      const int64_t before = model.forwards;
      gate.release();
      wait_until([&] { return model.forwards > before; });
      while (stream->take(20ms, &batch) == TokenStream::Taken::kBatch) {
        if (!batch.tokens.empty()) pieces.push_back(static_cast<int64_t>(batch.tokens.size()));
      }
    }
    std::vector<int64_t> expected(static_cast<size_t>(24 / interval), interval);
    if (24 % interval > 0) expected.push_back(24 % interval);
    EXPECT_EQ(pieces, expected);
    gate.release(1000);
    wait_until([&] { return is_idle(); });
    engine().between_steps([&] { model.gate = nullptr; });
  }
}

TEST_P(EngineTest, TakesSinksOfARequest) {
  Request request = greedy_request(prompt_of(200), 20);
  request.sinks = 20;
  const auto stream = submit(request);
  EXPECT_EQ(read_all(*stream).ids, expected_reply(prompt_of(200), 20));
  EXPECT_EQ(stream->stats().live_tokens, 64) << "sinks and window share the capacity";
}

TEST_P(EngineTest, WorksWithoutATokenizer) {
  options.tokens = nullptr;
  const auto stream = submit(greedy_request(prompt_of(3), 20));
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.ids, expected_reply(prompt_of(3), 20));
  EXPECT_EQ(reply.text, "");
}

TEST_P(EngineTest, CarriesLogprobsAndTheirAlternatives) {
  Request request = greedy_request(prompt_of(3), 5);
  request.params.logprobs = 3;
  const auto stream = submit(request);
  StreamBatch batch;
  size_t tokens = 0;
  while (stream->take(10s, &batch) == TokenStream::Taken::kBatch) {
    size_t top = 0;
    for (const StreamToken& token : batch.tokens) {
      ASSERT_EQ(token.top_count, 3);
      EXPECT_EQ(batch.top[top].id, token.id);
      EXPECT_EQ(batch.top[top].logprob, token.logprob);
      top += token.top_count;
      ++tokens;
    }
    EXPECT_EQ(top, batch.top.size());
  }
  EXPECT_EQ(tokens, 5u);
}

TEST_P(EngineTest, SamplesTheSameTokensForTheSameSeedWhateverTheBatch) {
  const auto drawn = [&](uint64_t seed) {
    Request request = greedy_request(prompt_of(3), 60);
    request.params.temperature = 20;
    request.params.repetition_penalty = 1.3;
    request.params.seed = seed;
    return submit(request);
  };
  const auto alone = read_all(*drawn(7)).ids;
  std::vector<std::shared_ptr<TokenStream>> batch;
  for (uint64_t i = 0; i < 9; ++i) batch.push_back(drawn(i));
  for (uint64_t i = 0; i < 9; ++i) {
    EXPECT_EQ(read_all(*batch[i]).ids == alone, i == 7);
  }
}

// ---- what is refused -------------------------------------------------------------------------

template <typename Error>
std::string refusal(Engine& engine, const Request& request) {
  try {
    engine.submit(request);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_P(EngineTest, RefusesAnEmptyPrompt) {
  EXPECT_EQ(refusal<InvalidArgument>(engine(), greedy_request({}, 5)),
            "stream: `prompt` must hold at least 1 token, but is empty.");
}

TEST_P(EngineTest, RefusesIdsOutsideTheVocabulary) {
  EXPECT_EQ(refusal<InvalidArgument>(engine(), greedy_request({0, 299, 300}, 5)),
            "stream: item 2 of `prompt` must be a token id in [0, 300), but is 300.");
  EXPECT_EQ(refusal<InvalidArgument>(engine(), greedy_request({-1}, 5)),
            "stream: item 0 of `prompt` must be a token id in [0, 300), but is -1.");
}

TEST_P(EngineTest, RefusesSamplingOutOfRange) {
  Request request = greedy_request({5}, 5);
  request.params.top_p = 2;
  EXPECT_THROW(submit(request), InvalidArgument);
}

TEST_P(EngineTest, RefusesStopStringsWithoutATokenizer) {
  options.tokens = nullptr;
  Request request = greedy_request({5}, 5);
  request.params.stop = {"end"};
  EXPECT_THROW(submit(request), InvalidArgument);
}

TEST_P(EngineTest, RefusesSinksThatLeaveNoWindow) {
  for (const int64_t sinks : {int64_t{-1}, int64_t{64}, INT64_MAX}) {
    Request request = greedy_request({5}, 5);
    request.sinks = sinks;
    EXPECT_THROW(submit(request), InvalidArgument) << sinks;
  }
  Request request = greedy_request({5}, 5);
  request.sinks = 63;
  EXPECT_EQ(read_all(*submit(request)).ids.size(), 5u);
}

TEST_P(EngineTest, RefusesWhatCanNeverFit) {
  options.max_sequences = 1;
  options.window = {.sinks = 0, .window = 128};  // 3 window pages in each layer
  Request request = greedy_request({5}, std::nullopt);
  request.sinks = 1;  // plus a sink page
  EXPECT_EQ(
      refusal<CapacityError>(engine(), request),
      "stream: the request needs 8.2 kB of cache, but the model has only 6.1 kB. Load it with "
      "a larger `window` or `max_sequences`, or lower `max_tokens`.");
  request.params.max_tokens = 20;  // one window page is enough
  EXPECT_EQ(read_all(*submit(request)).ids.size(), 20u);
}

TEST_P(EngineTest, RefusesEverythingAfterItWasClosed) {
  engine().close();
  engine().close();
  EXPECT_EQ(refusal<EngineDead>(engine(), greedy_request({5}, 5)),
            "stream: the model is closed. Load it again.");
  EXPECT_THROW(engine().between_steps([] {}), EngineDead);
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineTest);

}  // namespace
}  // namespace sinkstream
