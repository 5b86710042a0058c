// Concurrent conversations of several users, each with its own secrets: whatever the order of
// operations, no user ever sees another's secret, and each conversation is a plain list of ids.
// SINKSTREAM_SOAK_TURNS sets the number of turns; `make soak` runs 100,000.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "cache/snapshot.h"
#include "canary_model.h"
#include "engine_fixture.h"
#include "sampling_kernels.h"

namespace sinkstream {
namespace {

using Ids = std::vector<int32_t>;

constexpr Window kWindow{.sinks = 4, .window = 60};
constexpr int64_t kLayers = 2;
constexpr int32_t kUsers = 4;               // each a thread
constexpr size_t kConversations = 16;       // at most, per user: 64 in total
constexpr int64_t kMemoryForSessions = 48;  // so that some are refused
constexpr int64_t kDefaultTurns = 5'000;    // without SINKSTREAM_SOAK_TURNS
constexpr int64_t kNever = INT64_C(1) << 60;

struct Counts {
  int64_t turns = 0;
  int64_t tokens = 0;         // of replies
  int64_t secrets_shown = 0;  // to their owners
  int64_t cancelled = 0;      // turns
  int64_t cut_prompts = 0;    // of those, during prefill
  int64_t taken_back = 0;
  int64_t kept = 0;  // that could not be taken back
  int64_t opened = 0;
  int64_t shared = 0;  // tokens shared when a conversation was opened
  int64_t forked = 0;
  int64_t loaded = 0;
  int64_t closed = 0;
  int64_t closed_mid_turn = 0;  // closed in the middle of a turn
  int64_t refused = 0;          // for lack of memory
};

struct Count {
  const char* name;
  int64_t Counts::*of;
};
constexpr Count kCounts[] = {
    {"turns", &Counts::turns},
    {"tokens", &Counts::tokens},
    {"secrets shown to their owners", &Counts::secrets_shown},
    {"turns cancelled", &Counts::cancelled},
    {"prompts cut", &Counts::cut_prompts},
    {"turns taken back", &Counts::taken_back},
    {"turns too late to take back", &Counts::kept},
    {"opened", &Counts::opened},
    {"tokens shared at opening", &Counts::shared},
    {"forked", &Counts::forked},
    {"saved and loaded", &Counts::loaded},
    {"closed", &Counts::closed},
    {"closed in mid-turn", &Counts::closed_mid_turn},
    {"refused for lack of memory", &Counts::refused},
};

struct Conversation {
  std::shared_ptr<Session> session;
  Ids ids;                  // all tokens, including a reply's last one
  bool is_pending = false;  // that one is not in the cache yet
  int32_t secret = 0;       // sent in every turn; a fork also has its original's
};

// The outcome of a turn.
struct Received {
  Ids ids;
  std::vector<Ids> secrets;  // seen by the model for each token; sorted
  int64_t read = 0;          // tokens of the turn in the cache, a pending one included
};

// One thread and its conversations.
class User {
 public:
  // A turn that `looks` sees the secrets in each token's logits; others see only the tokens.
  User(Engine* engine, int32_t number, SampledBy sampled_by)
      : engine_(*engine),
        random_(static_cast<uint32_t>(number)),
        number_(number),
        sampled_by_(sampled_by) {}

  // Runs `turns` turns, and closes all conversations.
  void run(int64_t turns) {
    while (counts_.turns < turns && !testing::Test::HasFailure()) {
      change_something();
      run_some_turns();
    }
    while (!conversations_.empty()) close(0);
  }

  const Counts& counts() const { return counts_; }

 private:
  struct Turn {
    Conversation* conversation;
    Ids text;
    SessionPosition before;
    bool looks = true;
    bool is_cancelled = false;
    std::shared_ptr<TokenStream> stream;
  };

  size_t below(size_t bound) { return random_() % bound; }
  bool one_in(size_t times) { return below(times) == 0; }

  void change_something() {
    if (conversations_.empty()) return open();
    if (conversations_.size() == kConversations) return close(below(kConversations));
    const size_t index = below(conversations_.size());
    switch (below(6)) {
      case 0: return open();
      case 1: return fork(index);
      case 2: return save_and_load(index);
      case 3: return close(index);
    }
  }

  // `make` returns a session that continues from a prefix of `ids`.
  template <typename Make>
  void add(const Ids& ids, bool is_pending, int64_t* count, const Make& make) {
    try {
      auto one = std::make_unique<Conversation>();
      one->session = make();
      const int64_t seen = one->session->stats().tokens + is_pending;
      one->ids.assign(ids.begin(), ids.begin() + seen);
      one->is_pending = is_pending;
      one->secret = next_secret();
      conversations_.push_back(std::move(one));
      ++*count;
    } catch (const CapacityError&) {
      ++counts_.refused;
    }
  }

  // Every user has secrets that no other user has.
  int32_t next_secret() {
    constexpr int32_t kEach = kSecrets / kUsers;
    return static_cast<int32_t>(kFakeVocab) + number_ * kEach + secrets_++ % kEach;
  }

  void open() {
    Ids beginning;
    if (!conversations_.empty()) beginning = conversations_[below(conversations_.size())]->ids;
    const size_t before = conversations_.size();
    add(beginning, false, &counts_.opened, [&] { return engine_.open_session({}, beginning); });
    if (conversations_.size() > before) counts_.shared += std::ssize(conversations_.back()->ids);
  }

  void fork(size_t index) {
    const Conversation& one = *conversations_[index];
    add(one.ids, one.is_pending, &counts_.forked,
        [&] { return engine_.fork_session(*one.session); });
  }

  void save_and_load(size_t index) {
    const Conversation& one = *conversations_[index];
    std::vector<std::byte> rows;
    SessionState at;
    engine_.read_session(*one.session, [&](const Session& session) {
      rows.resize(static_cast<size_t>(snapshot_shape(*session.cache).bytes()));
      snapshot(*session.cache, rows.data(), nullptr);
      at = session.state();
    });
    const Ids ids = one.ids;
    const bool is_pending = one.is_pending;
    if (one_in(2)) close(index);
    add(ids, is_pending, &counts_.loaded, [&] {
      return engine_.restore_session(kWindow.sinks, at, [&](SequenceCache* cache) {
        restore(cache, at.sequence, rows.data(), nullptr);
      });
    });
  }

  void close(size_t index) {
    conversations_[index]->session->close();
    conversations_.erase(conversations_.begin() + static_cast<int64_t>(index));
    ++counts_.closed;
  }

  // Several at a time, so that they run concurrently with each other and with other users'.
  void run_some_turns() {
    std::shuffle(conversations_.begin(), conversations_.end(), random_);
    std::vector<Turn> turns;
    const size_t count = std::min(conversations_.size(), 1 + below(8));
    for (size_t i = 0; i < count; ++i) turns.push_back(start(conversations_[i].get()));
    for (Turn& turn : turns) finish(&turn);
    std::erase_if(conversations_, [](const auto& one) { return one->session->is_closed(); });
  }

  Turn start(Conversation* conversation) {
    Ids text(below(one_in(40) ? 3000 : one_in(4) ? 150 : 6));
    for (int32_t& id : text) id = static_cast<int32_t>(below(kFakeVocab));
    text.insert(text.begin() + static_cast<int64_t>(below(text.size() + 1)), conversation->secret);
    Request request = greedy_request(text, static_cast<int64_t>(below(12)));
    // A turn that looks is sampled on the host. Where a device samples, half of the turns do not
    // look.
    const bool looks = sampled_by_ == SampledBy::kHost || one_in(2);
    if (looks) request.params.logprobs = kMaxLogprobs;
    ++counts_.turns;
    return {.conversation = conversation,
            .text = std::move(text),
            .before = engine_.position_of(*conversation->session),
            .looks = looks,
            .stream = engine_.submit(std::move(request), conversation->session)};
  }

  void finish(Turn* turn) {
    Conversation& one = *turn->conversation;
    if (one_in(50)) {
      one.session->close();
      ++counts_.closed_mid_turn;
      receive(turn, kNever);
      return;
    }
    const Received received = receive(turn, one_in(4) ? static_cast<int64_t>(below(6)) : kNever);
    const Ids before = one.ids;
    const bool was_pending = one.is_pending;
    take_over(*turn, received);
    if (testing::Test::HasFailure()) return;
    if (one_in(8) && take_back(turn)) {
      one.ids = before;
      one.is_pending = was_pending;
    }
    EXPECT_EQ(engine_.ids_of(*one.session), live_ids(one));
  }

  // Reads to the end; cancels after `cancel_after` pieces.
  Received receive(Turn* turn, int64_t cancel_after) {
    Received received;
    StreamBatch batch;
    for (int64_t pieces = 0;; ++pieces) {
      if (pieces == cancel_after) {
        turn->is_cancelled = true;
        turn->stream->cancel();
        ++counts_.cancelled;
      }
      const TokenStream::Taken taken = turn->stream->take(10s, &batch);
      if (taken == TokenStream::Taken::kEnd) return received;
      if (taken == TokenStream::Taken::kNothing) {
        ADD_FAILURE() << "the stream returns nothing";
        return received;
      }
      for (const StreamMark& mark : batch.marks) {
        if (mark.kind != StreamMark::Kind::kPrefill) continue;
        const int64_t replayed = turn->stream->stats().replayed_tokens;
        received.read = std::max<int64_t>(mark.count - replayed, 0);
      }
      const TokenLogprob* top = batch.top.data();
      for (const StreamToken& token : batch.tokens) {
        received.ids.push_back(token.id);
        Ids& secrets = received.secrets.emplace_back();
        for (const TokenLogprob* end = top + token.top_count; top < end; ++top) {
          // Logits are 20 for the token, 10 for each secret it saw, and 0 for all others.
          if (is_secret(top->id) && top->logprob > token.logprob - 15) secrets.push_back(top->id);
        }
        std::sort(secrets.begin(), secrets.end());
      }
    }
  }

  // Appends the turn to the conversation, and checks that its reply depends on that alone.
  void take_over(const Turn& turn, const Received& received) {
    Conversation& one = *turn.conversation;
    const int64_t read = std::max<int64_t>(received.read - one.is_pending, 0);
    ASSERT_LE(read, std::ssize(turn.text));
    const bool is_whole = read == std::ssize(turn.text);
    ASSERT_TRUE(is_whole || (turn.is_cancelled && received.ids.empty()));
    counts_.cut_prompts += received.read > 0 && !is_whole;
    if (received.read > 0) one.is_pending = !received.ids.empty();
    one.ids.insert(one.ids.end(), turn.text.begin(), turn.text.begin() + read);
    for (size_t i = 0; i < received.ids.size(); ++i) {
      const Expected expected = expected_after(one.ids, kWindow, kLayers);
      if (turn.looks) {
        ASSERT_EQ(received.secrets[i], expected.secrets) << "turn " << counts_.turns;
      }
      ASSERT_EQ(received.ids[i], expected.next) << "turn " << counts_.turns;
      one.ids.push_back(expected.next);
      if (turn.looks) counts_.secrets_shown += std::ssize(expected.secrets);
    }
    counts_.tokens += std::ssize(received.ids);
  }

  bool take_back(Turn* turn) {
    try {
      if (engine_.go_back(*turn->conversation->session, turn->before, one_in(2))) {
        ++counts_.taken_back;
        return true;
      }
    } catch (const CapacityError&) {  // no memory to unshare its pages
    }
    ++counts_.kept;
    return false;
  }

  static Ids live_ids(const Conversation& one) {
    Ids live;
    const int64_t length = std::ssize(one.ids) - one.is_pending;
    for (const int64_t j : live_indices(length, kWindow)) {
      live.push_back(one.ids[static_cast<size_t>(j)]);
    }
    if (one.is_pending) live.push_back(one.ids.back());
    return live;
  }

  Engine& engine_;
  std::mt19937 random_;
  const int32_t number_;
  const SampledBy sampled_by_;
  int32_t secrets_ = 0;  // used so far
  std::vector<std::unique_ptr<Conversation>> conversations_;
  Counts counts_;
};

int64_t wanted_turns() {
  const char* wanted = std::getenv("SINKSTREAM_SOAK_TURNS");
  return wanted == nullptr ? kDefaultTurns : std::atoll(wanted);
}

class CanarySoak : public testing::TestWithParam<SampledBy> {};

TEST_P(CanarySoak, NoUserEverSeesAnothersSecretAndEachConversationIsAPlainList) {
  CanaryModel model;
  ThreadPool threads(1);
  const int64_t each = SequenceCache::memory_needed(kWindow, kLayers, kEndlessLength).pages[0];
  PagePool pool(kFakeShape, each * kMemoryForSessions, /*poison=*/true);
  EngineOptions options;
  options.pools = &pool;
  options.layers = kLayers;
  options.window = kWindow;
  options.max_sequences = kUsers * kConversations;
  options.prefill_chunk = 16;
  options.kernels = &sampling_kernels();
  options.threads = &threads;
  if (GetParam() != SampledBy::kHost) {
    const int64_t drafts = GetParam() == SampledBy::kDraftingDevice ? 1 : 0;
    model.set_step_runner(
        std::make_unique<FakeRunner>(&model, options.max_sequences, options.kernels, drafts));
  }
  Engine engine(model, options);

  const int64_t turns = wanted_turns();
  std::vector<std::unique_ptr<User>> users;
  std::vector<std::thread> user_threads;
  for (int32_t i = 0; i < kUsers; ++i) {
    users.push_back(std::make_unique<User>(&engine, i, GetParam()));
    user_threads.emplace_back([user = users.back().get(), turns] { user->run(turns / kUsers); });
  }
  for (std::thread& thread : user_threads) thread.join();
  engine.close();
  EXPECT_EQ(pool.free_pages(), pool.pages());
  EXPECT_GT(model.widest, kUsers);

  Counts sum;
  for (const Count& count : kCounts) {
    for (const auto& user : users) sum.*count.of += user->counts().*count.of;
    std::printf("%10" PRId64 " %s\n", sum.*count.of, count.name);
    EXPECT_GT(sum.*count.of, 0) << count.name;
  }
}

INSTANTIATE_TEST_SUITE_P(SampledBy, CanarySoak,
                         testing::Values(SampledBy::kHost, SampledBy::kDevice,
                                         SampledBy::kDraftingDevice),
                         [](const auto& info) { return ::sinkstream::name_of(info.param); });

}  // namespace
}  // namespace sinkstream
