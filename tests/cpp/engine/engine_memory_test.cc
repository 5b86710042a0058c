// What the engine allocates, and running out of memory at every allocation of its thread.
#include <atomic>
#include <cstdlib>
#include <future>
#include <limits>
#include <new>

#include "engine_fixture.h"
#include "fail_points/fail_points.h"
#include "heap/heap.h"
#include "sampling_kernels.h"

namespace sinkstream {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

TEST_P(EngineTest, ATokenTakesNothingFromTheHeapWhileTheConsumerKeepsUp) {
  options.kernels = &sampling_kernels();  // the reference table sorts copies
  std::counting_semaphore<1 << 20> gate(1);
  model.gate = &gate;
  const auto stream = submit(greedy_request({5}, std::nullopt));
  StreamBatch batch;
  int64_t before = 0;
  constexpr int kGrown = 200;  // the cache is full, and the batches have grown
  // A token, then a permit for the next one: however slow this thread is, it never lags.
  for (int token = 0; token < 5000;) {
    ASSERT_EQ(stream->take(10s, &batch), TokenStream::Taken::kBatch);
    if (batch.tokens.empty()) continue;  // only marks
    ASSERT_EQ(batch.tokens.size(), 1u);
    if (++token == kGrown) before = allocations();
    gate.release();
  }
  EXPECT_EQ(allocations(), before);
  stream->cancel();
  gate.release(1000);  // for steps in flight
  engine().close();    // before the gate is destroyed
}

TEST_P(EngineTest, EndsOnlyTheOneWhoseLastCharactersHaveNoMemory) {
  // When the stream is parked, at least a hundred characters are held back.
  const auto pending = static_cast<int64_t>(TokenStream::kMaxPendingTokens);
  const auto expected = expected_reply({5}, pending + 100);
  Request request = greedy_request({5}, std::nullopt);
  request.params.stop = {text_of({expected.end() - 200, expected.end()})};
  const auto stream = submit(request);
  const auto neighbour = submit(greedy_request({6}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 2; });
  engine().between_steps([] {});  // the last step in flight has been delivered, too
  const FailPoint arm("step.arrivals_taken", once([&] {
                        stream->cancel();
                        fail_allocations(0, 1);  // the next allocation copies what was held back
                      }));
  engine().between_steps([] {});  // wakes it
  const Reply reply = read_all(*stream);
  EXPECT_EQ(reply.ids, expected_reply({5}, pending + lookahead()));
  EXPECT_EQ(reply.text, text_of({expected.begin(), expected.end() - 200}));
  EXPECT_EQ(stream->finish_reason(), FinishReason::kError);
  EXPECT_THROW(stream->rethrow(), std::bad_alloc);
  const std::vector<int32_t> others = read_tokens(*neighbour, 5000).ids;
  EXPECT_EQ(others, expected_reply({6}, static_cast<int64_t>(others.size())));
  neighbour->cancel();
}

TEST_P(EngineTest, EndsOnlyTheOneThatHasNoMemoryToBegin) {
  const auto neighbour = submit(greedy_request({6}, std::nullopt));
  // All buffers that grow with the number of sequences have grown now.
  EXPECT_EQ(read_all(*submit(greedy_request({5}, 3))).ids, expected_reply({5}, 3));
  wait_until([&] { return engine().stats().parked == 1; });
  for (const int64_t after : {0, 1}) {  // both are page tables
    engine().between_steps([&] { fail_allocations(after, 1); });
    const auto stream = submit(greedy_request({5}, 3));
    EXPECT_TRUE(read_all(*stream).ids.empty());
    EXPECT_EQ(stream->finish_reason(), FinishReason::kError);
    EXPECT_THROW(stream->rethrow(), std::bad_alloc) << "more has ended than this one";
  }
  EXPECT_EQ(read_all(*submit(greedy_request({5}, 3))).ids, expected_reply({5}, 3));
  neighbour->cancel();
}

TEST_P(EngineTest, EndsOnlyTheOneThatHasNoMemoryForItsToken) {
  std::atomic<int64_t> fails_at{std::numeric_limits<int64_t>::max()};
  model.before_forward = [&](int64_t forward) {
    if (forward == fails_at) fail_allocations(0, 1);  // the model itself no longer allocates
  };
  const auto neighbour = submit(greedy_request({6}, std::nullopt));
  wait_until([&] { return engine().stats().parked == 1; });
  engine().between_steps([] {});  // no forward pass is in flight that would still be counted
  fails_at = model.forwards + 3;
  Request request = greedy_request({5}, 300);
  request.params.logprobs = kMaxLogprobs;
  const auto stream = submit(request);
  const std::vector<int32_t> ids = read_all(*stream).ids;
  EXPECT_GE(ids.size(), 3u);
  EXPECT_LE(ids.size(), 4u);
  EXPECT_EQ(stream->finish_reason(), FinishReason::kError);
  EXPECT_THROW(stream->rethrow(), std::bad_alloc) << "more has ended than this one";
  EXPECT_EQ(read_all(*submit(greedy_request({5}, 3))).ids, expected_reply({5}, 3));
  neighbour->cancel();
}

// What else happens while memory runs out.
enum class Scene {
  kNothingElse,
  kCrowd,    // more requests arrive at once than ever before
  kFailure,  // the step fails
};

// A separate engine that runs out of memory while it prefills, decodes, admits and runs jobs.
class OutOfMemory : public EngineTestBase {
 protected:
  using EngineTestBase::EngineTestBase;

  struct Outcome {
    int64_t failures = 0;        // allocations that failed
    std::exception_ptr of_work;  // what `between_steps` threw
    bool has_worked = false;     // whether it did its work
    std::optional<FinishReason> of_decoding, of_late;
  };

  // In the second step, fails `failures` allocations after `after` successful ones.
  Outcome run(Scene scene, int64_t after, int64_t failures) {
    FakeModel model;
    ThreadPool threads(1);
    const int64_t each =
        SequenceCache::memory_needed(options.window, kLayers, kEndlessLength).pages[0];
    PagePool pool(kShape, each * options.max_sequences);
    EngineOptions own = options;
    own.pools = &pool;
    own.kernels = &reference_kernels();
    own.threads = &threads;
    maybe_add_runner(&model, own);
    std::promise<void> inside, calling, go;
    model.before_forward = [&](int64_t forward) {
      if (forward != 1) return;
      inside.set_value();
      go.get_future().wait();
      fail_allocations(after, failures);
      if (scene == Scene::kFailure) throw std::bad_alloc();
    };
    const int64_t failed_before = failed_allocations();
    Outcome outcome;
    {
      Engine engine(model, own);
      Request request = greedy_request(kDecoding, 12);
      request.params.stream_interval = 5;
      request.params.stop = {text_of(expected_reply(kDecoding, 20))};  // all of it is held back
      const auto decoding = engine.submit(request);
      inside.get_future().wait();
      const auto late = engine.submit(greedy_request(kLate, 3));
      std::vector<std::shared_ptr<TokenStream>> crowd(scene == Scene::kCrowd ? 70 : 0);
      for (auto& stream : crowd) stream = engine.submit(greedy_request({7}, 0));
      std::atomic<bool> has_returned{false};
      std::thread caller([&] {
        calling.set_value();
        try {
          engine.between_steps([&] { outcome.has_worked = true; });
        } catch (...) {
          outcome.of_work = std::current_exception();
        }
        has_returned = true;
      });
      calling.get_future().wait();
      std::this_thread::sleep_for(2ms);  // so that the caller is usually waiting inside
      go.set_value();
      outcome.of_decoding = check_end(*decoding, kDecoding, 12);
      outcome.of_late = check_end(*late, kLate, 3);
      for (const auto& stream : crowd) check_end(*stream, {7}, 0);
      wait_until([&] { return has_returned.load(); });
      if (!has_returned)
        std::_Exit(1);  // a caller that never returns can be neither joined nor leaked
      caller.join();
      engine.close();
      const EngineStats stats = engine.stats();
      EXPECT_EQ(stats.running + stats.waiting + stats.parked, 0);
    }
    EXPECT_EQ(pool.free_pages(), pool.pages()) << "a sequence has leaked its pages";
    EXPECT_NE(outcome.has_worked, outcome.of_work != nullptr);
    outcome.failures = failed_allocations() - failed_before;
    return outcome;
  }

  // The stream ends, and its output is right.
  static std::optional<FinishReason> check_end(TokenStream& stream,
                                               const std::vector<int32_t>& prompt, int64_t tokens) {
    const Reply reply = read_all(stream);
    EXPECT_TRUE(reply.has_ended);
    const auto expected = expected_reply(prompt, tokens);
    const auto given = static_cast<int64_t>(reply.ids.size());
    EXPECT_EQ(reply.ids, expected_reply(prompt, std::min(given, tokens)));
    EXPECT_TRUE(text_of(expected).starts_with(reply.text)) << reply.text;
    if (stream.finish_reason() == FinishReason::kLength) {
      EXPECT_EQ(given, tokens);
      EXPECT_EQ(reply.text, text_of(expected));
    } else {
      EXPECT_EQ(stream.finish_reason(), FinishReason::kError);
      try {
        stream.rethrow();
        ADD_FAILURE() << "nothing is thrown";
      } catch (const std::bad_alloc&) {
      } catch (const EngineDead&) {
      }
    }
    return stream.finish_reason();
  }

  const std::vector<int32_t> kDecoding{5};
  const std::vector<int32_t> kLate = std::vector<int32_t>(20, 6);  // two chunks
};

class OutOfMemoryFor : public OutOfMemory,
                       public testing::WithParamInterface<std::tuple<int64_t, SampledBy>> {
 protected:
  OutOfMemoryFor() : OutOfMemory(std::get<SampledBy>(GetParam())) {}

  const int64_t failures_ = std::get<int64_t>(GetParam());  // in a row
};

TEST_P(OutOfMemoryFor, EveryStreamAndCallerLearnsOfTheEnd) {
#if defined(__SANITIZE_THREAD__)
  constexpr int64_t kStep = 4;  // threads meet in the same few ways: all take ten seconds
#else
  constexpr int64_t kStep = 1;
#endif
  for (const Scene scene : {Scene::kNothingElse, Scene::kCrowd}) {
    int64_t after;
    for (after = 0;; after += kStep) {
      SCOPED_TRACE(cat("scene ", static_cast<int>(scene), ", allocation ", after));
      const Outcome outcome = run(scene, after, failures_);
      if (HasFailure()) return;  // the others may take ten seconds each to fail
      if (outcome.failures > 0) continue;
      EXPECT_EQ(outcome.of_decoding, FinishReason::kLength);  // it did not reach that allocation
      EXPECT_EQ(outcome.of_late, FinishReason::kLength);
      EXPECT_TRUE(outcome.has_worked);
      break;
    }
    EXPECT_GT(after, 20) << "hardly any allocation failed";
  }
}

TEST_P(OutOfMemoryFor, TheEndOfAFailedEngineArrivesWithoutTheMemoryToDescribeIt) {
  int64_t without_a_message = 0;
  for (int64_t after = 0, failures = 1; failures > 0; ++after) {
    SCOPED_TRACE(cat("allocation ", after));
    const Outcome outcome = run(Scene::kFailure, after, failures_);
    failures = outcome.failures;
    if (HasFailure()) return;
    EXPECT_EQ(outcome.of_decoding, FinishReason::kError);
    EXPECT_EQ(outcome.of_late, FinishReason::kError);
    ASSERT_TRUE(outcome.of_work) << "a dead engine has worked";
    try {
      std::rethrow_exception(outcome.of_work);
    } catch (const std::bad_alloc&) {
      ++without_a_message;
    } catch (const EngineDead&) {
    }
  }
  if (failures_ != kAll) return;  // only few of these are for the message
  EXPECT_GT(without_a_message, 0) << "the caller never waited while memory was lacking";
}

INSTANTIATE_TEST_SUITE_P(AllocationsOf, OutOfMemoryFor,
                         testing::Combine(testing::Values(1, kAll),
                                          testing::Values(SampledBy::kHost, SampledBy::kDevice)),
                         [](const auto& info) {
                           return cat(std::get<int64_t>(info.param) == 1 ? "one" : "all",
                                      "_sampled_by_", name_of(std::get<SampledBy>(info.param)));
                         });

}  // namespace
}  // namespace sinkstream
