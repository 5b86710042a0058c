// A model with layers that keep a state, which no token can be taken out of: whatever becomes of a
// sequence, each of its steps reads the state of exactly the tokens before it. The model checks
// that itself (fake_model.h); a wrong one ends the engine.
#include <random>

#include "cache/snapshot.h"
#include "engine_fixture.h"

namespace sinkstream {
namespace {

using Ids = std::vector<int32_t>;

// A text of `count` tokens, none of which ends a reply.
Ids text_with(int64_t count, int32_t first) {
  Ids ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(4 + static_cast<int32_t>((first + 7 * i) % 290));
  return ids;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class EngineStatesTest : public EngineTest {
 protected:
  // Keys, a state, keys, a larger state.
  EngineStatesTest() {
    options.layers = CacheLayers(std::vector<LayerMemory>{
        {.page = kShape}, {.state_bytes = 24}, {.page = kShape}, {.state_bytes = 100}});
  }

  std::shared_ptr<Session> open(const Ids& beginning = {}) {
    return engine().open_session({}, beginning);
  }
  std::shared_ptr<TokenStream> start(const std::shared_ptr<Session>& session, Ids text,
                                     std::optional<int64_t> reply) {
    return engine().submit(greedy_request(std::move(text), reply), session);
  }

  // A turn, which must continue from `history`; returns what it is now.
  Ids turn(const std::shared_ptr<Session>& session, const Ids& history, const Ids& text,
           int64_t reply) {
    const Ids before = joined(history, text);
    const auto stream = start(session, text, reply);
    const Ids ids = read_all(*stream).ids;
    EXPECT_EQ(ids, expected_reply(before, reply));
    expect_no_error(*stream);
    return joined(before, ids);
  }

  static void expect_no_error(TokenStream& stream) {
    try {
      stream.rethrow();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }

  // A session in another's place: its snapshot, restored.
  std::shared_ptr<Session> saved_and_restored(Session& session, int64_t sinks = 4) {
    SessionState state;
    std::vector<std::byte> keys_values, states;
    engine().read_session(session, [&](const Session& held) {
      const SnapshotShape shape = snapshot_shape(*held.cache);
      state = held.state();
      keys_values.resize(static_cast<size_t>(shape.bytes()));
      states.resize(static_cast<size_t>(shape.state_bytes()));
      snapshot(*held.cache, keys_values.data(), nullptr, states.data());
    });
    return engine().restore_session(sinks, state, [&](SequenceCache* cache) {
      restore(cache, state.sequence, keys_values.data(), nullptr, states.data());
    });
  }
};

TEST_P(EngineStatesTest, LookAheadReadsTheLaneOfTheStepInFlight) {
  const auto stream = submit(greedy_request(text_with(40, 1), 300));
  EXPECT_EQ(read_all(*stream).ids, expected_reply(text_with(40, 1), 300));
  expect_no_error(*stream);
}

TEST_P(EngineStatesTest, SequencesOfDifferentLengthsShareTheirSteps) {
  std::vector<std::pair<Ids, std::shared_ptr<TokenStream>>> all;
  for (int32_t i = 0; i < 12; ++i) {
    Ids prompt = text_with(1 + 23 * i % 90, 31 * i);
    auto stream = submit(greedy_request(prompt, 20 + 9 * i));
    all.emplace_back(std::move(prompt), std::move(stream));
  }
  for (int32_t i = 0; i < 12; ++i) {
    auto& [prompt, stream] = all[static_cast<size_t>(i)];
    EXPECT_EQ(read_all(*stream).ids, expected_reply(prompt, 20 + 9 * i)) << i;
    expect_no_error(*stream);
  }
  EXPECT_GT(model.widest, 1);
}

TEST_P(EngineStatesTest, ADroppedStepLeavesTheSessionWhereItWas) {
  const auto session = open();
  Ids history;
  for (int32_t i = 0; i < 8; ++i) {
    const Ids text = text_with(5, 40 * i), before = joined(history, text);
    const Ids all = expected_reply(before, 12);
    Request request = greedy_request(text, std::nullopt);  // may always want one token more
    request.params.stop_token_ids = {all[10]};
    const auto stream = engine().submit(std::move(request), session);
    const Ids ids = read_all(*stream).ids;
    ASSERT_LE(ids.size(), 11u);
    EXPECT_EQ(ids, Ids(all.begin(), all.begin() + std::ssize(ids)));
    expect_no_error(*stream);
    history = joined(before, ids);
  }
}

TEST_P(EngineStatesTest, ATurnIsUndoneToTheLaneThatWasKept) {
  const auto session = open();
  Ids history = turn(session, {}, text_with(10, 1), 5);
  for (int i = 0; i < 5; ++i) {
    const SessionPosition before = engine().position_of(*session);
    read_all(*start(session, text_with(3, 50), 15));
    EXPECT_TRUE(engine().go_back(*session, before, false));
    history = turn(session, history, text_with(2, 60 + i), 1);
  }
}

TEST_P(EngineStatesTest, AnOlderTurnIsReadAgainFromWhereTheSystemPromptEnds) {
  options.window = {.sinks = 4, .window = 150};
  const auto session = open();
  const Ids system = turn(session, {}, text_with(30, 2), 0);
  std::vector<std::pair<SessionPosition, Ids>> starts;
  Ids history = system;
  for (int32_t i = 0; i < 4; ++i) {
    starts.emplace_back(engine().position_of(*session), history);
    history = turn(session, history, text_with(5, 40 * i), 6);
  }
  const auto& [third, before] = starts[2];
  EXPECT_FALSE(engine().go_back(*session, third, false));
  EXPECT_TRUE(engine().go_back(*session, third, true));
  EXPECT_EQ(session->stats().unread_tokens, third.length - 30);
  const auto& [second, earlier] = starts[1];
  EXPECT_TRUE(engine().go_back(*session, second, true)) << "before that has been read";
  EXPECT_EQ(session->stats().unread_tokens, second.length - 30);

  history = turn(session, earlier, text_with(7, 90), 5);
  EXPECT_EQ(session->stats().unread_tokens, 0);
  EXPECT_TRUE(engine().go_back(*session, second, false)) << "its beginning was kept on the way";
  turn(session, earlier, text_with(3, 9), 5);
}

TEST_P(EngineStatesTest, ATurnIsUndoneWithoutReadingThoughTheWindowHasMoved) {
  const auto session = open();
  Ids history = turn(session, {}, text_with(100, 1), 80);
  SessionPosition before = engine().position_of(*session);
  for (const int64_t reply : {10, 50}) {
    turn(session, history, text_with(9, 60), reply);
    EXPECT_TRUE(engine().go_back(*session, before, false)) << reply;
    EXPECT_EQ(session->stats().tokens, before.length);
  }
  turn(session, history, text_with(9, 60), 70);
  EXPECT_FALSE(engine().go_back(*session, before, false)) << "longer than the window";
  EXPECT_TRUE(engine().go_back(*session, before, true));
  EXPECT_EQ(session->stats().unread_tokens, before.length) << "all of it";
  history = turn(session, history, text_with(9, 61), 30);
  before = engine().position_of(*session);
  turn(session, history, text_with(2, 3), 4);
  EXPECT_TRUE(engine().go_back(*session, before, false));
  turn(session, history, text_with(2, 5), 4);
}

TEST_P(EngineStatesTest, ForksAndSnapshotsMayGoBackWithoutReadingToo) {
  options.window = {.sinks = 4, .window = 150};
  const auto session = open();
  const Ids history = turn(session, {}, text_with(40, 1), 10);
  const SessionPosition before = engine().position_of(*session);
  turn(session, history, text_with(5, 9), 20);
  for (const auto& other : {engine().fork_session(*session), saved_and_restored(*session)}) {
    EXPECT_TRUE(engine().go_back(*other, before, false));
    turn(other, history, text_with(8, 70), 12);
    other->close();
  }
}

TEST_P(EngineStatesTest, APinnedPromptIsSharedHoweverFarItsSessionHasGone) {
  const Ids system = text_with(30, 2);
  const auto session = engine().open_session(30, {});
  Ids history = turn(session, {}, joined(system, text_with(6, 80)), 200);
  const SessionPosition before = engine().position_of(*session);
  history = turn(session, history, text_with(5, 90), 100);

  Request request = greedy_request(joined(system, text_with(6, 200)), 8);
  request.sinks = 30;
  const auto other = submit(std::move(request));
  EXPECT_EQ(read_all(*other).ids, expected_reply(joined(system, text_with(6, 200)), 8));
  expect_no_error(*other);
  EXPECT_EQ(other->stats().cached_tokens, 30);

  EXPECT_TRUE(engine().go_back(*session, before, true));
  EXPECT_EQ(session->stats().unread_tokens, before.length - 30);
  history.resize(static_cast<size_t>(before.length + 1));  // and the pending token
  history = turn(session, history, text_with(3, 7), 9);
  const auto restored = saved_and_restored(*session, 30);
  EXPECT_TRUE(engine().go_back(*restored, before, true));
  EXPECT_EQ(restored->stats().unread_tokens, before.length - 30) << "the pinned end is saved";
}

TEST_P(EngineStatesTest, ARunningTurnIsUndone) {
  const auto session = open();
  Ids history = turn(session, {}, text_with(20, 1), 2);
  for (int i = 0; i < 5; ++i) {
    const SessionPosition before = engine().position_of(*session);
    const auto stream = start(session, text_with(2, 50), std::nullopt);
    read_tokens(*stream, 3);
    stream->cancel();
    EXPECT_TRUE(engine().go_back(*session, before, false));
    history = turn(session, history, text_with(1, 60 + i), 2);
  }
}

TEST_P(EngineStatesTest, AForkHasItsOwnStates) {
  const auto session = open();
  Ids history = turn(session, {}, text_with(20, 1), 10);
  const auto fork = engine().fork_session(*session);
  Ids other = turn(fork, history, text_with(3, 5), 8);
  history = turn(session, history, text_with(9, 70), 4);
  other = turn(fork, other, text_with(2, 9), 3);
  history = turn(session, history, text_with(1, 3), 3);
}

TEST_P(EngineStatesTest, APrefixIsSharedOnlyWhereALaneStandsForIt) {
  const Ids system = text_with(30, 2);
  const auto session = open();
  Ids history = turn(session, {}, system, 0);
  history = turn(session, history, text_with(5, 90), 4);  // keeps the lane at its beginning

  const auto same = submit(greedy_request(joined(system, text_with(6, 200)), 8));
  EXPECT_EQ(read_all(*same).ids, expected_reply(joined(system, text_with(6, 200)), 8));
  expect_no_error(*same);
  EXPECT_EQ(same->stats().cached_tokens, 30);

  const Ids half(system.begin(), system.begin() + 17);
  const auto other = submit(greedy_request(joined(half, text_with(6, 200)), 8));
  EXPECT_EQ(read_all(*other).ids, expected_reply(joined(half, text_with(6, 200)), 8));
  expect_no_error(*other);
  EXPECT_EQ(other->stats().cached_tokens, 0) << "no lane stands for 17 tokens";

  const auto second = open(joined(system, text_with(6, 200)));
  EXPECT_EQ(second->stats().tokens, 30);
  turn(second, system, text_with(6, 200), 5);
  const auto longer = open(history);
  EXPECT_EQ(longer->stats().tokens, std::ssize(history) - 1) << "all but the pending token";
  turn(longer, Ids(history.begin(), history.end() - 1), {history.back()}, 5);
}

TEST_P(EngineStatesTest, AParkedSequenceGoesOnWhereItStopped) {
  options.max_sequences = 2;
  const auto parked = submit(greedy_request({9}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 1; });
  const auto other = submit(greedy_request(text_with(50, 3), 40));
  EXPECT_EQ(read_all(*other).ids, expected_reply(text_with(50, 3), 40));
  const Ids ids = read_tokens(*parked, 3000).ids;
  EXPECT_EQ(ids, expected_reply({9}, std::ssize(ids)));
  expect_no_error(*parked);
}

TEST_P(EngineStatesTest, ASessionMovesThroughASnapshot) {
  const auto session = open();
  Ids history;
  for (const int64_t reply : {5, 90}) {  // the second one past the window
    history = turn(session, history, text_with(10, 1), reply);
    const auto restored = saved_and_restored(*session);
    turn(restored, history, text_with(3, 8), 6);
    restored->close();
  }
  turn(session, history, text_with(3, 9), 6);
}

TEST_P(EngineStatesTest, NothingIsSeenOfASlotsPreviousOwner) {
  options.max_sequences = 1;
  for (int32_t i = 0; i < 10; ++i) {
    const Ids prompt = text_with(1 + i, 20 * i);
    const auto stream = submit(greedy_request(prompt, i % 3 == 0 ? 70 : 2));
    if (i % 4 == 3) stream->cancel();
    const Ids ids = read_all(*stream).ids;
    EXPECT_EQ(ids, expected_reply(prompt, std::ssize(ids)));
    expect_no_error(*stream);
  }
}

TEST_P(EngineStatesTest, ASequenceWaitsForAStateSlotThoughPagesAreFree) {
  state_slots = 2;
  const auto first = submit(greedy_request({9}, std::nullopt));
  const auto second = submit(greedy_request({10}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 2; });
  const auto third = submit(greedy_request({11}, 5));
  EXPECT_THROW(open(), CapacityError);
  wait_until([&] { return engine().stats().waiting == 1; });
  EXPECT_GT(engine().stats().free_pages, 0);
  first->cancel();
  EXPECT_EQ(read_all(*third).ids, expected_reply({11}, 5));
  expect_no_error(*third);
}

TEST_P(EngineStatesTest, AScoredPromptReadsThemInOrder) {
  const Ids prompt = text_with(70, 12);
  Request request = greedy_request(prompt, 6);
  request.params.prompt_logprobs = 0;
  const auto stream = submit(std::move(request));
  EXPECT_EQ(read_all(*stream).ids, expected_reply(prompt, 6));
  expect_no_error(*stream);
}

TEST_P(EngineStatesTest, ARunnerWithoutALaneForEveryStepIsRefused) {
  ThreadPool threads(1);
  PagePool pool(kShape, 100);
  const int64_t lanes = StatePool::lanes_for(1 + lookahead());
  for (const int64_t drafts : {0, 1}) {
    FakeModel other;
    EngineOptions own = options;
    own.kernels = &reference_kernels();
    own.threads = &threads;
    StatePool states(own.layers.lane_bytes(), drafts > 0 ? lanes : lanes - 1, 4);
    own.pools = &pool;
    own.pools.states = &states;
    if (sampled_by == SampledBy::kDevice) {
      other.set_step_runner(std::make_unique<FakeRunner>(&other, 4, own.kernels, drafts));
    } else if (drafts > 0) {
      continue;  // the host's runner drafts nothing
    }
    EXPECT_THROW(Engine(other, own), InternalError) << drafts << " drafts";
  }
}

// Random conversations against plain lists of their ids.
TEST_P(EngineStatesTest, RandomConversationsAlwaysContinueFromTheirOwnTokens) {  // no tsan
  std::mt19937 random(sampled_by == SampledBy::kHost ? 1 : 2);
  const auto below = [&random](int64_t bound) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
  };
  struct Conversation {
    std::shared_ptr<Session> session;
    int64_t sinks = 4;
    Ids history;
    std::vector<std::pair<SessionPosition, Ids>> starts;  // of its turns
  };
  std::vector<Conversation> all;
  int64_t undone = 0, read_again = 0;
  for (int step = 0; step < 600 && !HasFailure(); ++step) {
    SCOPED_TRACE(step);
    if (all.empty()) {
      const int64_t sinks = below(2) == 0 ? 4 : 20;
      all.push_back({engine().open_session(sinks, {}), sinks, {}, {}});
    }
    const auto at = all.begin() + below(std::ssize(all));
    Conversation& one = *at;
    const Ids text = text_with(1 + below(20), static_cast<int32_t>(below(290)));
    switch (below(9)) {
      case 0:
        if (all.size() == 3) break;  // one place is for a stream
        all.push_back({engine().fork_session(*one.session), one.sinks, one.history, one.starts});
        break;
      case 1: {
        const auto shared = one.history.begin() + below(std::ssize(one.history) + 1);
        Request request = greedy_request(joined(Ids(one.history.begin(), shared), text), 3);
        request.sinks = one.sinks;
        const Ids expected = expected_reply(request.prompt, 3);
        const auto stream = submit(std::move(request));
        EXPECT_EQ(read_all(*stream).ids, expected);
        expect_no_error(*stream);
        break;
      }
      case 2: {
        const SessionPosition before = engine().position_of(*one.session);
        const auto stream = start(one.session, text, 1 + below(6));
        if (below(2) == 0) read_all(*stream);
        stream->cancel();
        EXPECT_TRUE(engine().go_back(*one.session, before, true));
        break;
      }
      case 3: {
        if (one.session->stats().unread_tokens > 0) break;  // a caller reads them before
        auto restored = saved_and_restored(*one.session, one.sinks);
        one.session->close();
        one.session = std::move(restored);
        break;
      }
      case 4:
        if (below(3) > 0) break;
        one.session->close();
        all.erase(at);
        break;
      case 5: {
        if (one.starts.empty()) break;
        const auto count = static_cast<size_t>(below(std::ssize(one.starts)));
        const auto [start, history] = one.starts[count];
        const bool reads = below(2) == 0;
        if (!engine().go_back(*one.session, start, reads)) {
          EXPECT_FALSE(reads);
          break;
        }
        ++(one.session->stats().unread_tokens > 0 ? read_again : undone);
        one.history = history;
        one.starts.resize(count);
        break;
      }
      default:
        one.starts.emplace_back(engine().position_of(*one.session), one.history);
        one.history = turn(one.session, one.history, text, below(25));
    }
  }
  EXPECT_GT(undone, 10);
  EXPECT_GT(read_again, 10);
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineStatesTest);

}  // namespace
}  // namespace sinkstream
