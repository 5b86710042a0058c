// Sessions: every reply equals that of one long request over the same tokens.
#include <random>

#include "engine_fixture.h"
#include "lanes.h"

namespace sinkstream {
namespace {

class EngineSessionTest : public EngineTest {
 protected:
  using Ids = std::vector<int32_t>;

  std::shared_ptr<Session> open(std::optional<int64_t> sinks = {}, const Ids& beginning = {}) {
    return engine().open_session(sinks, beginning);
  }

  std::shared_ptr<TokenStream> start(const std::shared_ptr<Session>& session, Ids text,
                                     std::optional<int64_t> reply) {
    return engine().submit(greedy_request(std::move(text), reply), session);
  }

  Ids turn(const std::shared_ptr<Session>& session, const Ids& text, int64_t reply) {
    return read_all(*start(session, text, reply)).ids;
  }

  void expect_all_pages_free() {
    wait_until([this] { return is_idle(); });
  }
};

// The expected tokens and replies: one list of ids, whatever was evicted.
struct Script {
  std::vector<int32_t> ids;

  std::vector<int32_t> turn(const std::vector<int32_t>& text, int64_t reply) {
    ids.insert(ids.end(), text.begin(), text.end());
    const std::vector<int32_t> expected = expected_reply(ids, reply);
    ids.insert(ids.end(), expected.begin(), expected.end());
    return expected;
  }
};

TEST_P(EngineSessionTest, EachTurnContinuesFromTheOneBefore) {
  const auto session = open();
  Script script;
  EXPECT_EQ(turn(session, {10, 11, 12}, 5), script.turn({10, 11, 12}, 5));
  EXPECT_EQ(turn(session, {13}, 1), script.turn({13}, 1));
  EXPECT_EQ(turn(session, {14, 15}, 7), script.turn({14, 15}, 7));
  EXPECT_EQ(engine().ids_of(*session), script.ids);
  EXPECT_EQ(session->stats().turns, 3);
  EXPECT_EQ(session->stats().tokens, static_cast<int64_t>(script.ids.size()) - 1);
  session->close();
  expect_all_pages_free();
}

TEST_P(EngineSessionTest, TwoHundredTurnsEqualOneLongRequestWhileTheWindowMovesOn) {
  const auto session = open();
  std::mt19937 random(7);
  Script script;
  for (int i = 0; i < 200; ++i) {
    Ids text(1 + random() % 40);
    for (int32_t& id : text) id = static_cast<int32_t>(random() % kFakeVocab);
    const int64_t reply = random() % 6;
    ASSERT_EQ(turn(session, text, reply), script.turn(text, reply)) << "turn " << i;
  }
  EXPECT_GT(session->stats().evicted_tokens, 10 * options.window.capacity());
  const Ids live = engine().ids_of(*session);
  EXPECT_EQ(Ids(live.end() - 50, live.end()), Ids(script.ids.end() - 50, script.ids.end()));
  EXPECT_EQ(Ids(live.begin(), live.begin() + 4), Ids(script.ids.begin(), script.ids.begin() + 4));
}

TEST_P(EngineSessionTest, AStreamOfATurnCountsItsOwnTokens) {
  const auto session = open();
  turn(session, Ids(50, 9), 20);
  const auto stream = start(session, {5, 6}, 3);
  read_all(*stream);
  EXPECT_EQ(stream->stats().prompt_tokens, 3) << "two, and the pending token of the previous reply";
  EXPECT_EQ(stream->stats().cached_tokens, 64);
  EXPECT_EQ(stream->stats().generated_tokens, 3);
  EXPECT_EQ(stream->stats().evicted_tokens, 5);
  EXPECT_EQ(stream->stats().live_tokens, 64);
}

TEST_P(EngineSessionTest, ReadsWithoutAReply) {
  const auto session = open();
  Script script;
  const auto stream = start(session, {10, 11, 12}, 0);
  EXPECT_TRUE(read_all(*stream).ids.empty());
  EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
  script.turn({10, 11, 12}, 0);
  EXPECT_EQ(turn(session, Ids(100, 8), 0), script.turn(Ids(100, 8), 0));
  EXPECT_EQ(turn(session, {13}, 4), script.turn({13}, 4));
}

TEST_P(EngineSessionTest, AStopStringsTokensStayInTheCache) {
  const auto session = open();
  Script script;
  const Ids all = expected_reply({10, 11}, 20);
  Request request = greedy_request({10, 11}, 20);
  request.params.stop = {text_of({all[6]})};
  const Ids got = read_all(*engine().submit(std::move(request), session)).ids;
  ASSERT_LE(got.size(), 7u);
  script.turn({10, 11}, static_cast<int64_t>(got.size()));
  EXPECT_EQ(engine().ids_of(*session), script.ids);
  EXPECT_EQ(turn(session, {12}, 5), script.turn({12}, 5));
}

TEST_P(EngineSessionTest, PenaltiesCountTheTokensOfEarlierTurns) {
  const auto session = open();
  turn(session, {10, 11, 12}, 5);
  const auto with_penalty = [](Ids ids) {
    Request request = greedy_request(std::move(ids), 12);
    request.params.frequency_penalty = 30;
    return request;
  };
  Ids whole = {10, 11, 12};
  for (const int32_t id : expected_reply(whole, 5)) whole.push_back(id);
  whole.push_back(13);
  EXPECT_EQ(read_all(*engine().submit(with_penalty({13}), session)).ids,
            read_all(*submit(with_penalty(whole))).ids);
}

TEST_P(EngineSessionTest, ATokenOfAnEarlierTurnIsPenalizedAtOnce) {
  Ids earlier(40);
  for (size_t i = 0; i < earlier.size(); ++i) earlier[i] = static_cast<int32_t>(7 * i);
  Ids whole = earlier;
  for (whole.push_back(0);; ++whole.back()) {  // until the most probable token is one of them
    ASSERT_LT(whole.back(), kFakeVocab);
    const int32_t next = expected_reply(whole, 1)[0];
    if (std::find(earlier.begin(), earlier.end(), next) != earlier.end()) break;
  }
  const auto session = open();
  turn(session, earlier, 0);
  Request request = greedy_request({whole.back()}, 1);
  request.params.frequency_penalty = 30;
  const Ids given = read_all(*engine().submit(std::move(request), session)).ids;
  ASSERT_EQ(given.size(), 1u);
  EXPECT_NE(given, expected_reply(whole, 1));
  EXPECT_EQ(std::find(earlier.begin(), earlier.end(), given[0]), earlier.end());
}

TEST_P(EngineSessionTest, AForkAndItsOriginalContinueIndependently) {
  for (const int64_t tokens : {0, 2, 4, 5, 40, 63, 64, 65, 130, 500}) {
    SCOPED_TRACE(tokens);
    const auto session = open();
    Script script;
    if (tokens > 0) {
      ASSERT_EQ(turn(session, Ids(tokens, 7), 3), script.turn(Ids(tokens, 7), 3));
    }
    const auto fork = engine().fork_session(*session);
    Script other = script;
    for (int i = 0; i < 8; ++i) {
      ASSERT_EQ(turn(session, Ids(9, 20), 8), script.turn(Ids(9, 20), 8)) << i;
      ASSERT_EQ(turn(fork, Ids(4, 30), 9), other.turn(Ids(4, 30), 9)) << i;
    }
    session->close();
    ASSERT_EQ(turn(fork, {5}, 50), other.turn({5}, 50));
    fork->close();
    expect_all_pages_free();
  }
}

TEST_P(EngineSessionTest, AForkTakesAllItsMemoryAtOnceOrNone) {
  std::vector<std::shared_ptr<Session>> sessions = {open()};
  turn(sessions[0], Ids(30, 7), 3);
  while (sessions.size() < 4) sessions.push_back(engine().fork_session(*sessions[0]));
  // Of the two pages that a layer's ring and sinks need, a fork keeps sharing the sinks' page.
  EXPECT_THROW(while (true) sessions.push_back(engine().fork_session(*sessions[0])), CapacityError);
  EXPECT_GT(sessions.size(), 4u);
  for (size_t i = 0; i < sessions.size(); ++i) {
    Script script;
    script.turn(Ids(30, 7), 3);
    const Ids text(200, static_cast<int32_t>(20 + i));
    EXPECT_EQ(turn(sessions[i], text, 9), script.turn(text, 9));
  }
  for (const auto& session : sessions) session->close();
  expect_all_pages_free();
}

TEST_P(EngineSessionTest, ThousandsOfIdleSessionsHoldWhatTheyDeclaredAndLeaveTheRestToOthers) {
#if defined(__SANITIZE_THREAD__)
  const int64_t idle = 1'000;  // more would take two minutes
#else
  const int64_t idle = are_some_cases_enough() ? 2'000 : 10'000;
#endif
  options.max_sequences = idle + 1;
  options.prefill_chunk =
      100;  // few steps: the invariants check every page in each, which takes long here
  const int64_t each =
      SequenceCache::memory_needed(options.window, kLayers, kEndlessLength).pages[0];
  std::vector<std::shared_ptr<Session>> sessions;
  for (int64_t i = 0; i < idle; ++i) sessions.push_back(open());
  EXPECT_EQ(engine().stats().free_pages, each);

  // Some have turns. No session takes more than it declared, and one more stream finds its memory.
  const int64_t apart = idle / 2;
  std::vector<Script> scripts(2);
  const auto take_turns = [&](int64_t length) {
    for (size_t i = 0; i < scripts.size(); ++i) {
      const Ids text(length, static_cast<int32_t>(20 + i));
      ASSERT_EQ(turn(sessions[i * apart], text, 2), scripts[i].turn(text, 2)) << "session " << i;
    }
  };
  take_turns(80);
  EXPECT_EQ(read_all(*submit(greedy_request({10, 11}, 5))).ids, expected_reply({10, 11}, 5));
  take_turns(1);
  wait_until([&] { return engine().stats().free_pages == each; });

  const auto last = open();
  EXPECT_THROW(open(), CapacityError);
  for (const auto& session : sessions) session->close();
  last->close();
  expect_all_pages_free();
}

TEST_P(EngineSessionTest, SharesABeginningWithALiveSession) {
  options.window = {.sinks = 20, .window = 200};
  options.max_sequences = 6;
  Ids system(100);
  for (size_t i = 0; i < system.size(); ++i) system[i] = static_cast<int32_t>(i + 50);
  const auto first = open();
  turn(first, system, 0);

  Ids same = system;
  same.push_back(8);
  const auto stream = submit(greedy_request(same, 6));
  EXPECT_EQ(read_all(*stream).ids, expected_reply(same, 6));
  EXPECT_EQ(stream->stats().cached_tokens, 100);

  Ids almost = same;
  almost[70] = 3;
  const auto differing = submit(greedy_request(almost, 6));
  EXPECT_EQ(read_all(*differing).ids, expected_reply(almost, 6));
  EXPECT_EQ(differing->stats().cached_tokens, 70);

  const auto whole =
      submit(greedy_request(system, 6));  // its last token is computed for the logits
  EXPECT_EQ(read_all(*whole).ids, expected_reply(system, 6));
  EXPECT_EQ(whole->stats().cached_tokens, 99);

  const auto second = open({}, system);
  EXPECT_EQ(second->stats().tokens, 100);
  Script script;
  script.ids = system;
  EXPECT_EQ(turn(second, {8, 9}, 300), script.turn({8, 9}, 300));
  Script of_first;
  of_first.ids = system;
  EXPECT_EQ(turn(first, {9}, 300), of_first.turn({9}, 300))
      << "no other sequence has written to its pages";

  // Evicted tokens cannot be shared; sinks are never evicted.
  const auto third = open({}, system);
  EXPECT_EQ(third->stats().tokens, 20);
  EXPECT_EQ(open(19, system)->stats().tokens, 0)
      << "a session with other sinks has them in other rows";
}

// Otherwise the time to the first token would show how the session of another user begins.
TEST_P(EngineSessionTest, SharesNoBeginningWithASessionOfAnotherSalt) {
  options.window = {.sinks = 20, .window = 200};
  options.max_sequences = 6;
  Ids system(100);
  for (size_t i = 0; i < system.size(); ++i) system[i] = static_cast<int32_t>(i + 50);
  const auto own = engine().open_session({}, {}, "a");
  turn(own, system, 0);
  const auto fork = engine().fork_session(*own);
  own->close();
  const SessionState state = {.sequence = {.length = 0, .begins = {0}}};
  const auto restored = engine().restore_session(20, state, [](SequenceCache*) {}, "b");
  turn(restored, system, 0);

  Request request = greedy_request(system, 6);
  for (const auto& [salt, shared] :
       {std::pair("a", 99), std::pair("b", 99), std::pair("", 0), std::pair("c", 0)}) {
    request.cache_salt = salt;
    const auto stream = submit(request);
    EXPECT_EQ(read_all(*stream).ids, expected_reply(system, 6));
    EXPECT_EQ(stream->stats().cached_tokens, shared) << "salt " << salt;
    const auto session = engine().open_session({}, system, salt);
    EXPECT_EQ(session->stats().tokens, shared == 0 ? 0 : 100) << "salt " << salt;
    session->close();
  }
}

TEST_P(EngineSessionTest, StreamsShareTheBeginningOfATurnThatIsRunning) {
  options.window = {.sinks = 100, .window = 150};  // two pages of sinks
  options.max_sequences = 8;
  Ids text(240);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>((11 * i) % kFakeVocab);
  int64_t shared = 0;
  for (int32_t round = 0; round < 20; ++round) {
    const auto session = open();
    const auto running = start(session, text, 30);
    std::vector<std::shared_ptr<TokenStream>> streams;
    std::vector<Ids> prompts;
    for (int32_t i = 0; i < 6; ++i) {  // during its prefill, mostly
      prompts.emplace_back(text.begin(), text.begin() + 40 * (i + 1) - round);
      prompts.back().push_back(i);
      streams.push_back(submit(greedy_request(prompts.back(), 20)));
      if (i % 2 == 1) std::this_thread::yield();
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      EXPECT_EQ(read_all(*streams[i]).ids, expected_reply(prompts[i], 20));
      shared += streams[i]->stats().cached_tokens;
    }
    EXPECT_EQ(read_all(*running).ids, expected_reply(text, 30));
    session->close();
    expect_all_pages_free();
  }
  EXPECT_GT(shared, 0);
}

TEST_P(EngineSessionTest, GoesBackWithoutReadingWhileNothingWasEvicted) {
  const auto session = open();
  Script script;
  turn(session, {10, 11, 12}, 5), script.turn({10, 11, 12}, 5);
  const SessionPosition before = engine().position_of(*session);
  const auto running = start(session, {20, 21}, 40);
  read_tokens(*running, 4);
  running->cancel();
  EXPECT_TRUE(engine().go_back(*session, before, false));
  EXPECT_EQ(engine().ids_of(*session), script.ids);
  EXPECT_TRUE(engine().go_back(*session, before, false)) << "it is there";

  turn(session, {22}, 3);
  EXPECT_TRUE(engine().go_back(*session, before, false));
  const auto next = start(session, {13}, 9);
  EXPECT_EQ(read_all(*next).ids, script.turn({13}, 9));
  EXPECT_EQ(next->stats().replayed_tokens, 0);

  const SessionPosition later = engine().position_of(*session);
  turn(session, {23}, 100);
  const Ids live = engine().ids_of(*session);
  EXPECT_FALSE(engine().go_back(*session, later, false)) << "the window has moved";
  EXPECT_EQ(engine().ids_of(*session), live);
}

// The fake model's tokens depend on all before them. With this many layers, so do a cache's: Note
// [Reach] of cache/cache_layers.h.
constexpr int64_t kDeepLayers = 40;

TEST_P(EngineSessionTest, GoesBackToAnyTurnThoughTheWindowHasMoved) {
  options.layers = kDeepLayers;
  const auto session = open();
  Script script;
  std::vector<std::pair<SessionPosition, Script>> turns;
  for (int32_t i = 0; i < 40; ++i) {
    turns.emplace_back(engine().position_of(*session), Script(script));
    ASSERT_EQ(turn(session, Ids(9, i), i % 7), script.turn(Ids(9, i), i % 7));
  }
  for (const size_t to : {39, 31, 30, 12, 3, 1, 0}) {
    const auto& [before, there] = turns[to];
    ASSERT_TRUE(engine().go_back(*session, before, true));
    const SessionStats stats = session->stats();
    EXPECT_EQ(stats.tokens, before.length);
    EXPECT_EQ(stats.live_tokens, options.window.live(before.length));
    EXPECT_EQ(stats.turns, before.turns);
    if (to % 2 == 0) continue;  // goes back further without reading anything
    script = there;
    const auto stream = start(session, {7, 8}, 30);
    ASSERT_EQ(read_all(*stream).ids, script.turn({7, 8}, 30)) << "after turn " << to;
    EXPECT_EQ(stream->stats().prompt_tokens, 2 + before.pending.has_value());
    if (to > 12) EXPECT_GT(stream->stats().replayed_tokens, 0);
  }
}

TEST_P(EngineSessionTest, ATurnCancelledWhileItReadsAgainLeavesTheRestToTheNext) {
  options.layers = kDeepLayers;
  const auto session = open();
  Script script;
  turn(session, Ids(500, 3), 5), script.turn(Ids(500, 3), 5);
  const SessionPosition before = engine().position_of(*session);
  turn(session, {5}, 90);
  engine().go_back(*session, before, true);
  const auto fork = engine().fork_session(*session);
  const Ids live = engine().ids_of(*session);
  std::counting_semaphore<1 << 20> gate(0);
  model.gate = &gate;
  const auto cancelled = start(session, {20, 21}, 4);
  gate.release();
  cancelled->cancel();
  gate.release(1 << 19);
  read_all(*cancelled);
  EXPECT_EQ(engine().ids_of(*session), live);
  EXPECT_EQ(session->stats().turns, before.turns);
  Script other = script;
  EXPECT_EQ(turn(session, {13}, 9), script.turn({13}, 9));
  EXPECT_EQ(turn(fork, {14}, 70), other.turn({14}, 70)) << "a fork reads for itself";
}

TEST_P(EngineSessionTest, ReadsAgainWithoutAPrompt) {
  const auto session = open();
  Script script;
  turn(session, Ids(100, 3), 5), script.turn(Ids(100, 3), 5);
  const SessionPosition before = engine().position_of(*session);
  turn(session, {5}, 90);
  engine().go_back(*session, before, true);
  EXPECT_THROW(start(session, {}, 1), InvalidArgument);
  const auto stream = start(session, {}, 0);
  read_all(*stream);
  EXPECT_EQ(stream->stats().prompt_tokens, 0);
  EXPECT_GT(stream->stats().replayed_tokens, 0);
  EXPECT_EQ(engine().position_of(*session).pending, before.pending);
  EXPECT_EQ(session->stats().turns, before.turns);
  EXPECT_THROW(start(session, {}, 0), InvalidArgument) << "nothing is left to read";
  const auto next = start(session, {6}, 9);
  EXPECT_EQ(read_all(*next).ids, script.turn({6}, 9));
  EXPECT_EQ(next->stats().replayed_tokens, 0);
}

TEST_P(EngineSessionTest, TakesTheFirstTurnBackThoughOthersShareItsSinks) {
  const auto session = open();
  const SessionPosition before = engine().position_of(*session);
  turn(session, Ids(30, 7), 3);
  const auto fork = engine().fork_session(*session);
  engine().go_back(*session, before, false);
  Script anew, script;
  EXPECT_EQ(turn(session, Ids(30, 8), 9), anew.turn(Ids(30, 8), 9));
  script.turn(Ids(30, 7), 3);
  EXPECT_EQ(turn(fork, {9}, 9), script.turn({9}, 9));
}

TEST_P(EngineSessionTest, RefusesASecondTurnUntilTheFirstHasEnded) {
  const auto session = open();
  const auto running = start(session, {10}, std::nullopt);
  read_tokens(*running, 3);
  EXPECT_THROW(start(session, {11}, 1), SessionBusy);
  EXPECT_THROW(engine().fork_session(*session), SessionBusy);
  EXPECT_THROW(engine().go_back(*session, {}, true), SessionBusy);
  running->cancel();
  EXPECT_NO_THROW(turn(session, {11}, 1)) << "a cancelled turn ends at once";
}

TEST_P(EngineSessionTest, ATurnThatNeverBeganLeavesNothing) {
  options.max_sequences = 2;
  std::vector<std::shared_ptr<TokenStream>> others;
  const auto session = open();
  Script script;
  EXPECT_EQ(turn(session, {10, 11}, 4), script.turn({10, 11}, 4));
  std::counting_semaphore<1 << 20> gate(0);
  model.gate = &gate;
  others.push_back(submit(greedy_request({9}, 1)));  // blocks the engine in its forward
  const auto waiting = start(session, {12}, 5);
  waiting->cancel();
  gate.release(1000);
  read_all(*waiting);
  EXPECT_EQ(engine().ids_of(*session), script.ids);
  EXPECT_EQ(turn(session, {13}, 4), script.turn({13}, 4));
}

TEST_P(EngineSessionTest, SaysAtOnceThatASessionDoesNotFit) {
  options.max_sequences = 1;
  const auto session = open();
  EXPECT_THROW(open(), CapacityError);
  EXPECT_THROW(open(64), InvalidArgument);
  session->close();
  wait_until([this] { return is_idle(); });
  EXPECT_NO_THROW(open());
}

TEST_P(EngineSessionTest, AStreamDoesNotWaitIndefinitelyForIdleSessions) {
  options.max_sequences = 1;
  const auto session = open();
  const auto stream = submit(greedy_request({9}, std::nullopt));
  read_all(*stream);
  EXPECT_EQ(stream->finish_reason(), FinishReason::kError);
  EXPECT_THROW(stream->rethrow(), CapacityError);
  EXPECT_EQ(turn(session, {10}, 3), expected_reply({10}, 3));
}

TEST_P(EngineSessionTest, ATurnOvertakesThoseThatWaitForMemory) {
  options.max_sequences = 2;
  const auto first = open(), second = open();
  const auto endless = start(second, {7}, std::nullopt);
  read_tokens(*endless, 3);
  const auto waiting =
      submit(greedy_request({9}, std::nullopt));  // no page is free while they exist
  Script script;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(turn(first, {10}, 3), script.turn({10}, 3));
  waiting->cancel();
  endless->cancel();
  EXPECT_TRUE(read_all(*waiting).ids.empty());
}

TEST_P(EngineSessionTest, ATurnThatReadNothingIsNotCounted) {
  const auto session = open();
  Script script;
  EXPECT_EQ(turn(session, {10, 11}, 4), script.turn({10, 11}, 4));
  Request late = greedy_request({12}, 4);
  late.params.timeout_s = 1e-9;
  const auto stream = engine().submit(std::move(late), session);
  EXPECT_TRUE(read_all(*stream).ids.empty());
  EXPECT_EQ(stream->finish_reason(), FinishReason::kTimeout);
  EXPECT_EQ(session->stats().turns, 1);
  EXPECT_EQ(turn(session, {13}, 4), script.turn({13}, 4));
}

TEST_P(EngineSessionTest, ClosingEndsTheTurnAndReturnsThePages) {
  const auto session = open();
  const auto running = start(session, {10}, std::nullopt);
  read_tokens(*running, 3);
  session->close();
  session->close();
  read_all(*running);
  EXPECT_EQ(running->finish_reason(), FinishReason::kCancelled);
  expect_all_pages_free();
  EXPECT_THROW(start(session, {11}, 1), InvalidArgument);
  EXPECT_THROW(engine().fork_session(*session), InvalidArgument);
  EXPECT_THROW(engine().ids_of(*session), InvalidArgument);
}

TEST_P(EngineSessionTest, OutlivesItsEngineWithoutHarm) {
  const auto session = open();
  const auto running = start(session, {10}, std::nullopt);
  engine().close();
  EXPECT_TRUE(session->is_closed());
  EXPECT_EQ(running->finish_reason(), FinishReason::kCancelled);
  EXPECT_THROW(open(), EngineDead);
  session->close();
}

TEST_P(EngineSessionTest, AnErrorOfATurnLeavesWhatIsInTheCache) {
  model.poison_token = 77;
  const auto session = open();
  Script script;
  EXPECT_EQ(turn(session, {10, 11}, 4), script.turn({10, 11}, 4));
  const auto bad = start(session, {12, 77}, 4);
  read_all(*bad);
  EXPECT_THROW(bad->rethrow(), NonFiniteLogits);
  script.turn({12, 77}, 0);
  EXPECT_EQ(engine().ids_of(*session), script.ids);
  EXPECT_EQ(turn(session, {13}, 4), script.turn({13}, 4));
}

// Whatever the order of operations, each session is one list of ids, and no page is lost.
TEST_P(EngineSessionTest, RandomUseOfManySessionsNeverMixesThem) {
  options.layers = kDeepLayers;
  options.max_sequences = 8;
  struct Known {
    std::shared_ptr<Session> session;
    Script script;
  };
  for (uint32_t seed = 0; seed < (are_some_cases_enough() ? 2 : 6); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&random](size_t bound) { return random() % bound; };
    std::vector<Known> known;
    for (int step = 0; step < 400; ++step) {
      const size_t choice = below(10);
      if (known.empty() || choice == 0) {
        try {
          const Ids beginning = known.empty() ? Ids{} : known[below(known.size())].script.ids;
          const auto session = open({}, beginning);
          Script script;
          script.ids.assign(beginning.begin(), beginning.begin() + session->stats().tokens);
          known.push_back({session, script});
        } catch (const CapacityError&) {
          known.back().session->close();
          known.pop_back();
        }
        continue;
      }
      const size_t index = below(known.size());
      Known& one = known[index];
      if (choice == 1) {
        one.session->close();
        known.erase(known.begin() + static_cast<int64_t>(index));
      } else if (choice == 2) {
        try {
          known.push_back({engine().fork_session(*one.session), Script(one.script)});
        } catch (const CapacityError&) {
        }
      } else {
        const Ids text(1 + below(below(4) == 0 ? 90 : 6), static_cast<int32_t>(4 + below(290)));
        const auto reply = static_cast<int64_t>(below(12));
        const SessionPosition before = engine().position_of(*one.session);
        const auto stream = start(one.session, text, reply);
        Script after = one.script;
        ASSERT_EQ(read_all(*stream).ids, after.turn(text, reply)) << "step " << step;
        bool taken_back = false;
        if (choice == 3) {
          try {
            taken_back = engine().go_back(*one.session, before, below(2) == 0);
          } catch (const CapacityError&) {
          }
        }
        if (!taken_back) one.script = after;
      }
    }
    for (const Known& one : known) one.session->close();
    expect_all_pages_free();
  }
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineSessionTest);

}  // namespace
}  // namespace sinkstream
