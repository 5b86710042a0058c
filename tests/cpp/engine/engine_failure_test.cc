// Steps that throw, non-finite logits, forked children.
#include <sys/wait.h>
#include <unistd.h>

#include <new>

#include "engine_fixture.h"

namespace sinkstream {
namespace {

std::string error_of(const TokenStream& stream) {
  try {
    stream.rethrow();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "none";
}

class EngineFailureTest : public EngineTest {
 protected:
  // Every call to a dead engine must say that it is dead, and why.
  void expect_dead(TokenStream& stream, const std::string& cause, int64_t step) {
    EXPECT_TRUE(read_all(stream).has_ended);
    EXPECT_EQ(stream.finish_reason(), FinishReason::kError);
    EXPECT_THROW(stream.rethrow(), EngineDead);
    EXPECT_EQ(error_of(stream),
              cat("stream: the generation thread has stopped after a failure in step ", step, ": ",
                  cause, " Load the model again."));
    EXPECT_THROW(submit(greedy_request({5}, 3)), EngineDead);
    EXPECT_THROW(engine().between_steps([] {}), EngineDead);
    wait_until([this] { return is_idle(); });
  }
};

TEST_P(EngineFailureTest, EndsAllStreamsWhenAStepThrows) {
  model.before_forward = [](int64_t forward) {
    if (forward == 10) throw std::runtime_error("the model broke");
  };
  std::counting_semaphore<1 << 20> gate(0);
  model.gate = &gate;
  options.max_sequences = 2;
  const auto first = submit(greedy_request({5}, 50));
  const auto second = submit(greedy_request({6}, 50));
  const auto waiting = submit(greedy_request({7}, 50));
  gate.release(11);  // all three are in time to see it break
  const Reply reply = read_all(*first);
  EXPECT_EQ(reply.ids, expected_reply({5}, static_cast<int64_t>(reply.ids.size())));
  for (const auto& stream : {first, second, waiting}) {
    expect_dead(*stream, "the model broke.", 10);
  }
}

TEST_P(EngineFailureTest, DiesWithItsCauseInTheFirstStepToo) {
  model.before_forward = [](int64_t) { throw std::runtime_error("the model broke"); };
  expect_dead(*submit(greedy_request({5}, 50)), "the model broke.", 0);
}

TEST_P(EngineFailureTest, DiesOfBadAlloc) {
  model.before_forward = [](int64_t forward) {
    if (forward == 1) throw std::bad_alloc();
  };
  expect_dead(*submit(greedy_request({5}, 50)), "out of memory.", 1);
}

TEST_P(EngineFailureTest, DiesOfAThrownInteger) {
  model.before_forward = [](int64_t forward) {
    if (forward == 1) throw 42;
  };
  expect_dead(*submit(greedy_request({5}, 50)), "unknown.", 1);
}

TEST_P(EngineFailureTest, EndsOnlyTheSequenceWithNonFiniteLogits) {
  const auto reply = expected_reply({5}, 30);
  model.poison_token = reply[12];
  const int64_t before =
      std::find(reply.begin(), reply.end(), model.poison_token) - reply.begin() + 1;
  std::vector<int32_t> unharmed_prompt{6};
  while (true) {  // a neighbour that never meets the poison token
    auto tokens = expected_reply(unharmed_prompt, 200);
    tokens.insert(tokens.end(), unharmed_prompt.begin(), unharmed_prompt.end());
    if (std::find(tokens.begin(), tokens.end(), model.poison_token) == tokens.end()) break;
    ++unharmed_prompt[0];
  }
  const auto poisoned = submit(greedy_request({5}, std::nullopt));
  const auto unharmed = submit(greedy_request(unharmed_prompt, 200));
  EXPECT_EQ(read_all(*poisoned).ids, expected_reply({5}, before));
  EXPECT_EQ(poisoned->finish_reason(), FinishReason::kError);
  try {
    poisoned->rethrow();
    ADD_FAILURE() << "nothing is thrown";
  } catch (const NonFiniteLogits& error) {
    EXPECT_EQ(error.index, 1 + before);
  }
  const char* which =
      sampled_by == SampledBy::kHost ? "the logit of token 7 is nan" : "some are not";
  EXPECT_EQ(error_of(*poisoned),
            cat("stream: logits must be finite, but at index ", 1 + before, " ", which,
                ". Other streams continue; a more precise dtype may help."));
  EXPECT_EQ(read_all(*unharmed).ids, expected_reply(unharmed_prompt, 200));
}

TEST_P(EngineFailureTest, EndsOnlyTheSequenceThatHasNoTokenLeft) {
  Request request = greedy_request({5}, 10);
  request.params.temperature = 1;
  for (int32_t id = 0; id < kFakeVocab; ++id) request.params.logit_bias.push_back({id, -3e38f});
  const auto pressed = submit(request);
  const auto unharmed = submit(greedy_request({6}, 100));
  EXPECT_TRUE(read_all(*pressed).has_ended);
  EXPECT_EQ(read_all(*unharmed).ids, expected_reply({6}, 100));
}

TEST_P(EngineFailureTest, RefusesAForkedChildAndServesTheParent) {
  const auto stream = submit(greedy_request({5}, std::nullopt));
  read_tokens(*stream, 10);
  const pid_t child = fork();
  if (child == 0) {
    int refused = 0;
    const auto expect_refusal = [&refused](const std::function<void()>& call) {
      try {
        call();
      } catch (const ForkError&) {
        ++refused;
      }
    };
    StreamBatch batch;
    expect_refusal([&] { submit(greedy_request({5}, 3)); });
    expect_refusal([&] { engine().between_steps([] {}); });
    expect_refusal([&] { stream->take(1h, &batch); });
    engine().close();
    _exit(refused == 3 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(read_tokens(*stream, 10).has_ended);
  stream->cancel();
}

TEST_P(EngineFailureTest, TakesNoSignals) {
  bool blocks_interrupts = false;
  engine().between_steps([&] {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    blocks_interrupts = sigismember(&blocked, SIGINT) == 1;
  });
  EXPECT_TRUE(blocks_interrupts);
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGINT), 0) << "the caller's signal mask has not changed";
}

SINKSTREAM_TEST_BOTH_SAMPLERS(EngineFailureTest);

}  // namespace
}  // namespace sinkstream
