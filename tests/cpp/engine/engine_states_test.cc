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
  std::shared_ptr<Session> saved_and_restored(Session& session) {
    SessionState state;
    std::vector<std::byte> keys_values, states;
    engine().read_session(session, [&](const Session& held) {
      const SnapshotShape shape = snapshot_shape(*held.cache);
      state = held.state();
      keys_values.resize(static_cast<size_t>(shape.bytes()));
      states.resize(static_cast<size_t>(shape.state_bytes()));
      snapshot(*held.cache, keys_values.data(), nullptr, states.data());
    });
    return engine().restore_session(4, state, [&](SequenceCache* cache) {
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
  options.window = {.sinks = 4, .window = 150};
  std::mt19937 random(sampled_by == SampledBy::kHost ? 1 : 2);
  const auto below = [&random](int64_t bound) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
  };
  std::vector<std::pair<std::shared_ptr<Session>, Ids>> all;
  for (int step = 0; step < 400 && !HasFailure(); ++step) {
    SCOPED_TRACE(step);
    if (all.empty()) all.emplace_back(open(), Ids());
    const auto at = all.begin() + below(std::ssize(all));
    auto& [session, history] = *at;
    const Ids text = text_with(1 + below(20), static_cast<int32_t>(below(290)));
    switch (below(8)) {
      case 0:
        if (all.size() == 3) break;  // one place is for a stream
        all.emplace_back(engine().fork_session(*session), Ids(history));
        break;
      case 1: {
        const Ids prompt =
            joined(Ids(history.begin(), history.begin() + below(std::ssize(history) + 1)), text);
        const auto stream = submit(greedy_request(prompt, 1 + below(10)));
        const Ids ids = read_all(*stream).ids;
        EXPECT_EQ(ids, expected_reply(prompt, std::ssize(ids)));
        expect_no_error(*stream);
        break;
      }
      case 2: {
        const SessionPosition before = engine().position_of(*session);
        const auto stream = start(session, text, 1 + below(6));
        if (below(2) == 0) read_all(*stream);
        stream->cancel();
        EXPECT_TRUE(engine().go_back(*session, before, true));
        break;
      }
      case 3: {
        auto restored = saved_and_restored(*session);
        session->close();
        session = std::move(restored);
        break;
      }
      case 4:
        if (below(3) > 0) break;
        session->close();
        all.erase(at);
        break;
      default: history = turn(session, history, text, below(25));
    }
  }
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineStatesTest);

}  // namespace
}  // namespace sinkstream
