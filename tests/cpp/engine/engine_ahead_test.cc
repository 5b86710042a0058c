// One step of lookahead where a device samples: the order of launches and awaits, when the engine
// waits, and what happens to a discarded token.
#include <future>

#include "engine_fixture.h"
#include "fail_points/fail_points.h"

namespace sinkstream {
namespace {

class EngineAheadTest : public EngineTestBase {
 protected:
  EngineAheadTest() : EngineTestBase(SampledBy::kDevice) {}

  ~EngineAheadTest() override {
    open_gate();
    engine().close();
  }

  // Launches and awaits in order, once no step is in flight.
  std::string events() {
    std::string found;
    engine().between_steps([&] { found = runner->events; });
    return found;
  }
  // Steps launched, as read by the engine's thread between two steps.
  int64_t launched() {
    int64_t found = 0;
    engine().between_steps([&] { found = runner->launched(); });
    return found;
  }
  // Lets `steps` steps return their results, and waits until they have.
  void step(int64_t steps) {
    const int64_t target = model.forwards + steps;
    gate.release(steps);
    wait_until([&] { return model.forwards >= target; });
  }
  void open_gate() { gate.release(1 << 18); }

  std::counting_semaphore<1 << 20> gate{0};
};

TEST_F(EngineAheadTest, LaunchesEachStepBeforeItAwaitsTheOneBeforeAndNonePastTheLastToken) {
  EXPECT_EQ(read_all(*submit(greedy_request({5}, 6))).ids, expected_reply({5}, 6));
  EXPECT_EQ(events(), "LLALALALALAA");
}

TEST_F(EngineAheadTest, ReadsTheNextChunkOfAPromptWhileTheOneBeforeIsInFlight) {
  const std::vector<int32_t> prompt(48, 9);  // three chunks
  EXPECT_EQ(read_all(*submit(greedy_request(prompt, 1))).ids, expected_reply(prompt, 1));
  EXPECT_EQ(events(), "LLALAA");
}

TEST_F(EngineAheadTest, ChunksEndAtMultiplesOfTheirSizeWhateverIsInFlight) {
  const auto session = engine().open_session({}, {});
  read_all(*engine().submit(greedy_request(std::vector<int32_t>(30, 9), 0), session));
  const int64_t before = launched();
  read_all(*engine().submit(greedy_request(std::vector<int32_t>(100, 8), 0), session));
  EXPECT_EQ(launched() - before, 8) << "up to 32, 48, 64, 80, 96, 112, 128 and 130";
}

TEST_F(EngineAheadTest, AReplyOfOneTokenTakesOneStep) {
  EXPECT_EQ(read_all(*submit(greedy_request({5}, 1))).ids, expected_reply({5}, 1));
  EXPECT_EQ(events(), "LA");
}

// ---- a discarded token -----------------------------------------------------------------------

// A prompt whose reply has a stop token far past the window, and not before.
struct Stop {
  std::vector<int32_t> prompt;
  int64_t at;  // tokens of the reply, the stop token included
};

Stop stop_after(int32_t token, int64_t least) {
  for (int32_t salt = 0;; ++salt) {
    const std::vector<int32_t> prompt{salt % 300, salt / 300};
    const auto reply = expected_reply(prompt, least + 300);
    const auto at = std::find(reply.begin(), reply.end(), token) - reply.begin() + 1;
    if (at > least && at < least + 300) return {prompt, at};
  }
}

TEST_F(EngineAheadTest, AStopTokenDiscardsOneTokenAndItsSessionContinuesExactly) {
  const auto session = engine().open_session({}, {});
  const Stop stop = stop_after(99, 200);
  Request request = greedy_request(stop.prompt, std::nullopt);
  request.params.stop_token_ids = {99};
  const auto stream = engine().submit(request, session);
  const Reply reply = read_all(*stream);
  std::vector<int32_t> ids = stop.prompt;
  const auto expected = expected_reply(ids, stop.at);
  EXPECT_EQ(reply.ids, expected);
  ids.insert(ids.end(), expected.begin(), expected.end());

  EXPECT_EQ(launched(), stop.at + 1) << "a step for each token, and one discarded";
  EXPECT_EQ(model.forwards, stop.at + 1) << "and the discarded one was awaited, too";
  const auto length = static_cast<int64_t>(ids.size()) - 1;  // the last one is not in the cache
  EXPECT_EQ(session->stats().tokens, length);
  EXPECT_EQ(stream->stats().generated_tokens, stop.at);
  EXPECT_EQ(stream->stats().evicted_tokens, length - 64);
  const EngineStats stats = engine().stats();
  EXPECT_EQ(stats.generated_tokens, stop.at);
  EXPECT_EQ(stats.evicted_tokens, length - 64);
  int64_t decoding = 0;
  for (const StepRecord& record : engine().steps_since(0)) decoding += record.decoding;
  EXPECT_EQ(decoding, stop.at - 1) << "the first token comes from the prompt";

  ids.push_back(10);
  EXPECT_EQ(read_all(*engine().submit(greedy_request({10}, 100), session)).ids,
            expected_reply(ids, 100));
}

// A chunk wraps around the ring, and what it overwrites is lost.
TEST_F(EngineAheadTest, AFaultInAChunkWaitsForTheNextOneWhichIsInFlight) {
  options.prefill_chunk = 200;
  model.max_tokens_ = 512;
  const auto session = engine().open_session({}, {});
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 900; ++i) text.push_back(i % 250);
  const FailPoint broken("step.publish",
                         once(throws(std::runtime_error("a fault was planted")), 1));
  const auto stream = engine().submit(greedy_request(text, 3), session);
  EXPECT_TRUE(read_all(*stream).ids.empty());
  EXPECT_EQ(stream->finish_reason(), FinishReason::kError);
  EXPECT_EQ(session->stats().tokens, 600) << "the chunk that failed, and the one after it";
  text.resize(600);
  text.push_back(10);
  EXPECT_EQ(read_all(*engine().submit(greedy_request({10}, 100), session)).ids,
            expected_reply(text, 100));
}

// Penalties count neither the discarded token nor the table of the seat's previous owner.
TEST_F(EngineAheadTest, PenaltiesKnowNothingOfADiscardedToken) {
  const auto penalized = [](std::vector<int32_t> prompt, int64_t tokens) {
    Request request = greedy_request(std::move(prompt), tokens);
    request.params.frequency_penalty = 30;
    return request;
  };
  options.max_sequences = 2;
  const std::vector<int32_t> whole = read_all(*submit(penalized({5}, 40))).ids;
  for (int64_t stop = 1; stop < 20; ++stop) {
    const auto session = engine().open_session({}, {});
    Request request = penalized({5}, 40);
    request.params.stop_token_ids = {whole[static_cast<size_t>(stop)]};
    const auto first = read_all(*engine().submit(request, session)).ids;
    ASSERT_LT(first.size(), whole.size());
    std::vector<int32_t> prompt{5};
    prompt.insert(prompt.end(), first.begin(), first.end());
    prompt.push_back(11);
    EXPECT_EQ(read_all(*engine().submit(penalized({11}, 20), session)).ids,
              read_all(*submit(penalized(prompt, 20))).ids);
    session->close();
  }
}

// One seat, pages for one sequence: the next sequence has both before the discarded step returns.
TEST_F(EngineAheadTest, TheNextSequenceStartsWhileADiscardedTokenIsInFlight) {
  options.max_sequences = 1;
  const Stop stop = stop_after(99, 100);
  Request request = greedy_request(stop.prompt, std::nullopt);
  request.params.stop_token_ids = {99};
  model.gate = &gate;
  const auto first = submit(request);
  const auto second = submit(greedy_request({7}, 200));
  open_gate();
  EXPECT_EQ(read_all(*first).ids, expected_reply(stop.prompt, stop.at));
  EXPECT_EQ(read_all(*second).ids, expected_reply({7}, 200));
  EXPECT_EQ(runner->begun, 2);
  const std::string order = events();
  EXPECT_EQ(order.find("AA"), order.size() - 2) << "the engine waited in between: " << order;
}

TEST_F(EngineAheadTest, AStopStringDiscardsOneTokenAndHarmsNoNeighbour) {
  const auto neighbour = submit(greedy_request({6}, 600));
  for (int32_t i = 0; i < 20; ++i) {
    const auto expected = expected_reply({20, i}, 40);
    Request request = greedy_request({20, i}, std::nullopt);
    request.params.stop = {text_of({expected[30], expected[31], expected[32]})};
    const auto stream = submit(request);
    EXPECT_TRUE(text_of(expected).starts_with(read_all(*stream).text));
    EXPECT_EQ(stream->finish_reason(), FinishReason::kStopString);
  }
  EXPECT_EQ(read_all(*neighbour).ids, expected_reply({6}, 600));
}

TEST_F(EngineAheadTest, ASampleThatFindsNoTokenEndsOnlyItsSequence) {
  const Stop mute = stop_after(99, 20);
  engine().between_steps([&] { runner->mute_token = 99; });
  const auto stream = submit(greedy_request(mute.prompt, std::nullopt));
  EXPECT_EQ(read_all(*stream).ids, expected_reply(mute.prompt, mute.at));
  try {
    stream->rethrow();
    ADD_FAILURE() << "nothing is thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.what(),
              cat("stream: `logit_bias` must leave a token to sample, but forbids all ", kFakeVocab,
                  " at index ", 2 + mute.at, "."));
  }
  EXPECT_EQ(read_all(*submit(greedy_request({5}, 3))).ids, expected_reply({5}, 3));
}

// ---- when the engine waits -------------------------------------------------------------------

TEST_F(EngineAheadTest, SamplesRequestsWithLogprobsOnTheHostAndOthersOnTheDevice) {
  const auto request = [](int64_t logprobs, int64_t tokens) {
    Request made = greedy_request({5, 6, 7}, tokens);
    made.params.temperature = 20;
    made.params.repetition_penalty = 1.3;
    made.params.seed = 11;
    made.params.logprobs = logprobs;
    return made;
  };
  const auto drawn = read_all(*submit(request(0, 300))).ids;
  const size_t ahead = events().size();
  const auto single = submit(request(2, 100));
  EXPECT_EQ(read_all(*single).ids, std::vector<int32_t>(drawn.begin(), drawn.begin() + 100));
  const std::string order = events().substr(ahead);
  EXPECT_EQ(order.size(), 200u);
  EXPECT_EQ(order.find("LL"), std::string::npos)
      << "the host samples before the next step: " << order;

  const auto neighbour = submit(request(0, 300));
  const auto asking = submit(request(2, 100));
  StreamBatch batch;
  std::vector<int32_t> asked;
  while (asking->take(10s, &batch) == TokenStream::Taken::kBatch) {
    for (const StreamToken& token : batch.tokens) {
      asked.push_back(token.id);
      EXPECT_EQ(token.top_count, 2);
    }
  }
  EXPECT_EQ(asked, std::vector<int32_t>(drawn.begin(), drawn.begin() + 100));
  EXPECT_EQ(read_all(*neighbour).ids, drawn);
  EXPECT_TRUE(events().ends_with("LALALAA")) << "ahead again, once no sequence wants logprobs";
}

TEST_F(EngineAheadTest, WorkBetweenStepsFindsNothingInFlight) {
  const auto stream = submit(greedy_request({5}, 3000));
  for (int i = 0; i < 100; ++i) {
    engine().between_steps([&] { EXPECT_EQ(runner->launched(), model.forwards); });
  }
  EXPECT_EQ(read_all(*stream).ids, expected_reply({5}, 3000));
}

TEST_F(EngineAheadTest, ATurnThatIsCancelledWhileAChunkIsInFlightKeepsWhatWasRead) {
  const auto session = engine().open_session({}, {});
  std::vector<int32_t> text(200);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>((7 * i) % kFakeVocab);
  engine().between_steps([&] { model.gate = &gate; });
  const auto stream = engine().submit(greedy_request(text, 5), session);
  step(3);
  stream->cancel();
  open_gate();
  EXPECT_TRUE(read_all(*stream).ids.empty());
  EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
  const int64_t read = session->stats().tokens;
  EXPECT_EQ(read, 16 * launched()) << "every chunk that was launched has been delivered";
  EXPECT_LE(read, 16 * 5);
  text.resize(static_cast<size_t>(read));
  text.push_back(9);
  EXPECT_EQ(read_all(*engine().submit(greedy_request({9}, 100), session)).ids,
            expected_reply(text, 100));
}

TEST_F(EngineAheadTest, ClosingDeliversWhatIsInFlight) {
  model.gate = &gate;
  const auto stream = submit(greedy_request({5}, std::nullopt));
  step(10);
  auto closing = std::async(std::launch::async, [&] { engine().close(); });
  wait_until([&] {
    try {
      submit(greedy_request({6}, 0));
    } catch (const EngineDead&) {
      return true;
    }
    return false;
  });
  open_gate();
  closing.get();
  const Reply reply = read_all(*stream);
  EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(static_cast<int64_t>(reply.ids.size()), runner->launched());
  EXPECT_EQ(reply.ids, expected_reply({5}, runner->launched()));
}

// A turn's chunk is so long that it has overwritten the session's first tokens, though the chunk is
// not counted yet.
TEST_F(EngineAheadTest, NoSequenceSharesRowsThatAChunkInFlightHasOverwritten) {
  options.prefill_chunk = 200;
  model.max_tokens_ = 400;
  std::vector<int32_t> ids(30, 7);
  const auto session = engine().open_session({}, {});
  read_all(*engine().submit(greedy_request(ids, 0), session));
  Halt halt("step.launch");
  const std::vector<int32_t> text(300, 8);
  const auto turn = engine().submit(greedy_request(text, 50), session);
  ASSERT_TRUE(halt.await());
  ids.push_back(9);
  const auto stream = submit(greedy_request(ids, 50));
  halt.release();
  EXPECT_EQ(read_all(*stream).ids, expected_reply(ids, 50));
  EXPECT_EQ(stream->stats().cached_tokens, 4) << "only the sinks are never overwritten";
  ids.pop_back();
  ids.insert(ids.end(), text.begin(), text.end());
  EXPECT_EQ(read_all(*turn).ids, expected_reply(ids, 50));
}

TEST_F(EngineAheadTest, AParkedSequenceIsGivenTheTokenThatWasInFlight) {
  Request request = greedy_request({5}, 9000);
  request.params.stream_interval = 7;
  const auto stream = submit(request);
  wait_until([&] { return engine().stats().parked == 1; });
  EXPECT_EQ(launched(), model.forwards) << "it sleeps with a step in flight";
  EXPECT_EQ(engine().stats().generated_tokens, model.forwards);
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.ids, expected_reply({5}, 9000));
  EXPECT_EQ(reply.text, text_of(reply.ids));
  for (size_t i = 0; i + 1 < reply.pieces.size(); ++i) EXPECT_EQ(reply.pieces[i] % 7, 0);
}

TEST_F(EngineAheadTest, AParkedSequenceMayEndByTheTokenThatWasInFlight) {
  const auto tokens = static_cast<int64_t>(TokenStream::kMaxPendingTokens) + 1;
  const auto stream = submit(greedy_request({5}, tokens));
  wait_until([&] { return stream->finish_reason().has_value(); });
  EXPECT_TRUE(is_idle());
  EXPECT_EQ(read_all(*stream).ids, expected_reply({5}, tokens));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
}

// ---- a step that fails -----------------------------------------------------------------------

enum class Fails { kLaunch, kAwait };

class EngineAheadFailure : public EngineTestBase,
                           public testing::WithParamInterface<std::tuple<Fails, int64_t>> {
 protected:
  EngineAheadFailure() : EngineTestBase(SampledBy::kDevice) {}
};

TEST_P(EngineAheadFailure, EndsEveryStreamAndDeliversNoHalfOfAStep) {
  const auto [fails, at] = GetParam();
  const auto fail = [at = at](int64_t step) {
    if (step == at) throw DeviceError("the GPU broke");
  };
  std::counting_semaphore<1 << 20> gate(0);
  model.gate = &gate;
  (fails == Fails::kLaunch ? model.before_forward : model.before_results) = fail;
  options.max_sequences = 2;
  std::vector<std::shared_ptr<TokenStream>> streams;
  engine().between_steps([&] {  // both are in the first step
    for (int32_t i = 5; i < 8; ++i) streams.push_back(submit(greedy_request({i}, 50)));
  });
  gate.release(1 << 10);
  std::vector<size_t> given;
  for (int32_t i = 0; i < 3; ++i) {
    const Reply reply = read_all(*streams[static_cast<size_t>(i)]);
    EXPECT_TRUE(reply.has_ended);
    EXPECT_EQ(reply.ids, expected_reply({5 + i}, static_cast<int64_t>(reply.ids.size())));
    given.push_back(reply.ids.size());
    try {
      streams[static_cast<size_t>(i)]->rethrow();
      ADD_FAILURE() << "nothing is thrown";
    } catch (const EngineDead& error) {
      EXPECT_EQ(std::string(error.what()),
                cat("stream: the generation thread has stopped after a failure in step ", at,
                    ": the GPU broke. Load the model again."));
    }
  }
  // A step launched before the failed one is lost too if it has not been awaited.
  const int64_t delivered = fails == Fails::kAwait ? at : std::max<int64_t>(at - 1, 0);
  EXPECT_EQ(given, (std::vector<size_t>{static_cast<size_t>(delivered),
                                        static_cast<size_t>(delivered), 0}));
  EXPECT_THROW(engine().between_steps([] {}), EngineDead);
  wait_until([this] { return is_idle(); });
}

INSTANTIATE_TEST_SUITE_P(Steps, EngineAheadFailure,
                         testing::Combine(testing::Values(Fails::kLaunch, Fails::kAwait),
                                          testing::Values(0, 1, 10)),
                         [](const auto& info) {
                           const bool launches = std::get<Fails>(info.param) == Fails::kLaunch;
                           return cat(launches ? "launch_" : "await_",
                                      std::get<int64_t>(info.param));
                         });

// ---- memory ----------------------------------------------------------------------------------

using EngineScratch = EngineTest;

TEST_P(EngineScratch, HoldsLogitsAndGuessesOnlyWhereTheHostSamples) {
  options.speculation = std::nullopt;
  constexpr int64_t kScoredRows = 32;
  const int64_t of_one = SamplerScratch(kFakeVocab).bytes();
  const int64_t of_all =
      (options.max_sequences + kScoredRows) * kFakeVocab * int64_t{sizeof(float)};
  const int64_t of_guesses = kNgramEntries * int64_t{sizeof(uint64_t)};
  EXPECT_EQ(engine().scratch_bytes(),
            sampled_by == SampledBy::kHost ? of_one + of_all + of_guesses : of_one);
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineScratch);

TEST(EngineOfADeviceSampler, IsRefusedIfItHasTooFewSeats) {
  FakeModel model;
  ThreadPool threads(1);
  PagePool pool(kFakeShape, 100);
  EngineOptions options;
  options.pools = &pool;
  options.window = {.sinks = 4, .window = 60};
  options.max_sequences = 3;
  options.kernels = &reference_kernels();
  options.threads = &threads;
  model.set_step_runner(std::make_unique<FakeRunner>(&model, 2, options.kernels));
  EXPECT_THROW(Engine(model, options), InternalError);
}

}  // namespace
}  // namespace sinkstream
