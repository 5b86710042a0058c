// Two shares in one engine: what one gets while the other floods, and that no token changes.
#include "engine_fixture.h"

namespace sinkstream {
namespace {

class EngineSharesTest : public EngineTest {
 protected:
  EngineSharesTest() {
    options.max_sequences = 8;
    options.window = {.sinks = 4, .window = 252};
    model.gate = &gate_;
  }

  std::shared_ptr<TokenStream> submit_for(const std::string& share, std::vector<int32_t> prompt,
                                          int64_t tokens = 4, int64_t priority = 0) {
    Request request = greedy_request(std::move(prompt), tokens);
    request.share = share;
    request.params.priority = priority;
    return submit(std::move(request));
  }
  static std::vector<int32_t> long_prompt(int32_t first) {
    std::vector<int32_t> prompt(200, 7);
    prompt.front() = first;
    return prompt;
  }
  // No step ends before this.
  void let_run() { gate_.release(100000); }
  // Requests in the order in which they came into a phase.
  std::vector<int64_t> order_of(Phase phase) {
    std::vector<int64_t> order;
    for (const PhaseChange& change : engine().phase_changes_since(0).changes) {
      if (change.phase == phase) order.push_back(change.request);
    }
    return order;
  }

 private:
  std::counting_semaphore<1 << 20> gate_{0};
};

TEST_P(EngineSharesTest, AShareReadsItsPromptAsIfAFloodOfAnotherWereOnePrompt) {
  std::vector<std::shared_ptr<TokenStream>> flood;
  for (int32_t i = 0; i < 7; ++i) flood.push_back(submit_for("flood", long_prompt(10 + i)));
  const auto other = submit_for("other", long_prompt(60));
  let_run();
  EXPECT_EQ(read_all(*other).ids, expected_reply(long_prompt(60), 4));
  for (int32_t i = 0; i < 7; ++i) {
    EXPECT_EQ(read_all(*flood[static_cast<size_t>(i)]).ids, expected_reply(long_prompt(10 + i), 4));
  }
  // A step has four chunks: one for the other share, three for the seven prompts of the flood.
  EXPECT_EQ(order_of(Phase::kDecode).front(), other->request_id());
}

TEST_P(EngineSharesTest, AWaitingRequestOfAnotherShareIsAdmittedNext) {
  options.max_sequences = 1;
  let_run();
  const auto running = submit_for("flood", {5}, 100000);
  read_tokens(*running, 1);
  std::vector<std::shared_ptr<TokenStream>> waiting;
  for (int32_t i = 0; i < 3; ++i) waiting.push_back(submit_for("flood", {20 + i}, 2));
  waiting.push_back(submit_for("flood", {30}, 2, /*priority=*/-1));
  waiting.push_back(submit_for("other", {31}, 2));
  read_tokens(*running, 3000);  // its share has had more tokens than the other when it ends
  running->close();
  for (const auto& stream : waiting) read_all(*stream);
  // 1 ran; then the other share's, the one with a priority, and the rest in order.
  EXPECT_EQ(order_of(Phase::kPrefill), (std::vector<int64_t>{1, 6, 5, 2, 3, 4}));
}

TEST_P(EngineSharesTest, SaysWhatWaitsForMemoryAndNotForASeat) {
  options.max_sequences = 2;
  const auto held = engine().open_session({}, {});
  const auto also_held = engine().open_session({}, {});
  let_run();
  const auto waiting = submit_for("one", {5}, 100000);
  wait_until([&] { return engine().stats().waiting_for_memory == 1; });
  held->close();
  read_tokens(*waiting, 1);
  wait_until([&] { return engine().stats().waiting_for_memory == 0; });
  waiting->close();
}

// Note [Prompts with experts]: a chunk of 16 tokens takes the time of 8.4 steps.
TEST_P(EngineSharesTest, AStreamAndAPromptWithExpertsShareTheTime) {
  options.experts = {.part = 0.6, .share = 1.0 / 16};
  options.prompt_tokens_per_decode_step = 10;
  const std::vector<int32_t> prompt(64, 7);
  const auto stream = submit_for("stream", {5}, 60);
  model.gate->release(3);  // it decodes by the time that the other comes
  wait_until([&] { return engine().stats().steps >= 2; });
  const auto other = submit_for("other", prompt);
  let_run();
  EXPECT_EQ(read_all(*other).ids, expected_reply(prompt, 4));
  EXPECT_EQ(read_all(*stream).ids, expected_reply({5}, 60));
  std::vector<int64_t> after_the_first;  // that has read a chunk
  int64_t first = -1;
  for (const StepRecord& record : engine().steps_since(0)) {
    if (record.prompt_tokens < 16) continue;
    if (first < 0) first = record.step;
    after_the_first.push_back(record.step - first);
  }
  EXPECT_EQ(after_the_first, (std::vector<int64_t>{0, 8, 16, 24}));
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineSharesTest);

}  // namespace
}  // namespace sinkstream
