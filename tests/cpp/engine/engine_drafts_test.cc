// Runs of tokens: a runner that drafts returns several of a row. The engine delivers them in order
// until one ends the reply, and keeps in the cache what is a part of it.
#include "engine_fixture.h"
#include "fail_points/fail_points.h"

namespace sinkstream {
namespace {

class EngineDraftsTest : public EngineTestBase {
 protected:
  EngineDraftsTest() : EngineTestBase(SampledBy::kDraftingDevice) {}

  // Steps launched, as read by the engine's thread between two steps.
  int64_t launched() {
    int64_t found = 0;
    engine().between_steps([&] { found = runner->launched(); });
    return found;
  }
};

TEST_F(EngineDraftsTest, RunsArriveInOrderFarPastTheWindow) {
  const auto stream = submit(greedy_request({5}, 1000));
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.ids, expected_reply({5}, 1000));
  EXPECT_EQ(reply.text, text_of(reply.ids));
  EXPECT_EQ(stream->stats().evicted_tokens, 1000 - 64);
  EXPECT_GT(runner->kept_drafts, 300);
  EXPECT_GT(runner->dropped_drafts, 300);
  EXPECT_EQ(launched(), 1000 - runner->kept_drafts) << "every kept draft saves a step";
  int64_t decoding = 0;
  for (const StepRecord& record : engine().steps_since(0)) decoding += record.decoding;
  EXPECT_EQ(decoding, launched() - 1) << "the first token comes from the prompt";
}

TEST_F(EngineDraftsTest, ALimitIsNeverPassedAndItsLastTokenHasNoDraft) {
  for (int64_t tokens = 1; tokens < 12; ++tokens) {
    const auto stream = submit(greedy_request({5}, tokens));
    EXPECT_EQ(read_all(*stream).ids, expected_reply({5}, tokens));
    EXPECT_EQ(stream->finish_reason(), FinishReason::kLength);
    EXPECT_EQ(stream->stats().generated_tokens, tokens);
  }
}

// A reply may end at any token of a run. Its session continues after that token, whatever the run
// has appended after it.
TEST_F(EngineDraftsTest, AReplyEndsInsideARunAndItsSessionContinuesExactly) {
  options.max_sequences = 2;
  const std::vector<int32_t> whole = expected_reply({5}, 150);
  for (int64_t end = 1; end < 130; end += end < 20 ? 1 : 7) {
    const int32_t stop = whole[static_cast<size_t>(end - 1)];
    if (std::find(whole.begin(), whole.begin() + end - 1, stop) != whole.begin() + end - 1)
      continue;
    const auto session = engine().open_session({}, {});
    Request request = greedy_request({5}, std::nullopt);
    request.params.stop_token_ids = {stop};
    const auto stream = engine().submit(request, session);
    std::vector<int32_t> ids = read_all(*stream).ids;
    EXPECT_EQ(ids, std::vector<int32_t>(whole.begin(), whole.begin() + end));
    EXPECT_EQ(session->stats().tokens, end) << "the prompt's, and all but the last of the reply";
    EXPECT_EQ(stream->stats().generated_tokens, end);
    ids.insert(ids.begin(), 5);
    EXPECT_EQ(engine().ids_of(*session).size(), std::min<size_t>(ids.size(), 65));
    ids.push_back(9);
    EXPECT_EQ(read_all(*engine().submit(greedy_request({9}, 80), session)).ids,
              expected_reply(ids, 80));
    session->close();
  }
}

TEST_F(EngineDraftsTest, PenaltiesCountWhatIsKept) {
  const auto penalized = [](std::vector<int32_t> prompt, int64_t tokens) {
    Request request = greedy_request(std::move(prompt), tokens);
    request.params.frequency_penalty = 30;
    return request;
  };
  const std::vector<int32_t> whole = read_all(*submit(penalized({5}, 60))).ids;
  const auto session = engine().open_session({}, {});
  const auto first = read_all(*engine().submit(penalized({5}, 31), session)).ids;
  EXPECT_EQ(first, std::vector<int32_t>(whole.begin(), whole.begin() + 31));
  Request on_host = penalized({5}, 60);
  on_host.params.logprobs = 1;
  EXPECT_EQ(read_all(*submit(on_host)).ids, whole) << "which drafts nothing";
}

TEST_F(EngineDraftsTest, CompanyChangesNoRun) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int32_t i = 0; i < 12; ++i) {
    Request request = greedy_request(std::vector<int32_t>(1 + 9 * static_cast<size_t>(i), i), 90);
    if (i % 4 == 1) request.params.logprobs = 2;
    if (i % 4 == 2) request.params.prompt_logprobs = 2;
    streams.push_back(submit(request));
  }
  for (int32_t i = 0; i < 12; ++i) {
    const std::vector<int32_t> prompt(1 + 9 * static_cast<size_t>(i), i);
    EXPECT_EQ(read_all(*streams[static_cast<size_t>(i)]).ids, expected_reply(prompt, 90)) << i;
  }
}

TEST_F(EngineDraftsTest, ASampleThatFindsNoTokenEndsItsSequenceInsideARun) {
  for (int32_t mute = 4; mute < 40; ++mute) {
    const auto expected = expected_reply({3}, 4000);
    const auto at = std::find(expected.begin(), expected.end(), mute) - expected.begin();
    if (at == 4000) continue;
    engine().between_steps([&] { runner->mute_token = mute; });
    const auto stream = submit(greedy_request({3}, 4000));
    EXPECT_EQ(read_all(*stream).ids,
              std::vector<int32_t>(expected.begin(), expected.begin() + at + 1));
    EXPECT_EQ(stream->finish_reason(), FinishReason::kError);
  }
}

TEST_F(EngineDraftsTest, AFaultAfterARunEndsItsSequenceAndLeavesTheSessionWhole) {
  for (int64_t step = 2; step < 12; ++step) {
    const auto session = engine().open_session({}, {});
    const FailPoint broken("step.publish",
                           once(throws(std::runtime_error("a fault was planted")), step));
    const auto stream = engine().submit(greedy_request({5}, 100), session);
    read_all(*stream);
    EXPECT_EQ(stream->finish_reason(), FinishReason::kError);
    std::vector<int32_t> ids = engine().ids_of(*session);
    EXPECT_EQ(std::ssize(ids), session->stats().tokens + 1);
    std::vector<int32_t> expected = expected_reply({5}, std::ssize(ids) - 1);
    expected.insert(expected.begin(), 5);
    EXPECT_EQ(ids, expected);
    ids.push_back(9);
    EXPECT_EQ(read_all(*engine().submit(greedy_request({9}, 80), session)).ids,
              expected_reply(ids, 80));
    session->close();
  }
}

TEST_F(EngineDraftsTest, ARunnerThatDraftsMoreThanACacheHasRoomForIsRefused) {
  FakeModel other;
  ThreadPool threads(1);
  PagePool pool(kFakeShape, 100);
  EngineOptions own;
  own.pools = &pool;
  own.window = {.sinks = 4, .window = 60};
  own.kernels = &reference_kernels();
  own.threads = &threads;
  other.set_step_runner(std::make_unique<FakeRunner>(&other, 1, own.kernels, kLookAhead + 1));
  EXPECT_THROW(Engine(other, own), InternalError);
}

}  // namespace
}  // namespace sinkstream
