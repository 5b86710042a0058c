// An engine over the FakeModel with a tiny cache, and helpers that read its streams.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/errors.h"
#include "engine/engine.h"
#include "fake_runner.h"

namespace sinkstream {

using namespace std::chrono_literals;

// Token 1 ends a reply; 2 and 3 are also control tokens. Tokens from 4 on are one character each:
// first ASCII from '!', then two-byte characters.
inline constexpr int32_t kEndToken = 1;

inline std::string fake_bytes(int32_t id) {
  if (id < 4) return cat("<", id, ">");
  if (id < 98) return std::string(1, static_cast<char>('!' + id - 4));
  return {static_cast<char>(0xC4 + id % 4), static_cast<char>(0x80 + id % 64)};
}

inline std::shared_ptr<const TokenTable> fake_table() {
  std::vector<std::string> tokens;
  std::vector<uint8_t> special;
  for (int32_t id = 0; id < kFakeVocab; ++id) {
    tokens.push_back(fake_bytes(id));
    special.push_back(id < 4);
  }
  return std::make_shared<TokenTable>(tokens, special, /*strip_leading_space=*/false);
}

inline std::string text_of(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) {
    if (id >= 4) text += fake_bytes(id);
  }
  return text;
}

// All output of a stream.
struct Reply {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<StreamMark> marks;  // with positions counted over all batches
  std::vector<int64_t> pieces;    // token counts of the batches that have any
  bool has_ended = false;
};

// Reads until `enough` is true or the stream ends. Fails after ten seconds without output.
inline Reply read_until(TokenStream& stream, const std::function<bool(const Reply&)>& enough) {
  Reply reply;
  StreamBatch batch;
  while (!enough(reply)) {
    const TokenStream::Taken taken = stream.take(10s, &batch);
    if (taken == TokenStream::Taken::kEnd) {
      reply.has_ended = true;
      break;
    }
    if (taken == TokenStream::Taken::kNothing) {
      ADD_FAILURE() << "the stream returns nothing";
      break;
    }
    for (StreamMark mark : batch.marks) {
      mark.tokens_before += static_cast<uint32_t>(reply.ids.size());
      reply.marks.push_back(mark);
    }
    for (const StreamToken& token : batch.tokens) reply.ids.push_back(token.id);
    if (!batch.tokens.empty()) reply.pieces.push_back(static_cast<int64_t>(batch.tokens.size()));
    reply.text += batch.text;
  }
  return reply;
}

inline Reply read_all(TokenStream& stream) {
  return read_until(stream, [](const Reply&) { return false; });
}

inline Reply read_tokens(TokenStream& stream, size_t count) {
  return read_until(stream, [count](const Reply& reply) { return reply.ids.size() >= count; });
}

// Waits until `condition` holds. Fails after ten seconds.
inline void wait_until(const std::function<bool()>& condition) {
  const auto end = Clock::now() + 10s;
  while (!condition()) {
    if (Clock::now() > end) {
      ADD_FAILURE() << "the condition never became true";
      return;
    }
    std::this_thread::sleep_for(1ms);
  }
}

inline Request greedy_request(std::vector<int32_t> prompt, std::optional<int64_t> max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.params.temperature = 0;
  request.params.max_tokens = max_tokens;
  request.params.ignore_eos = true;
  return request;
}

// Where tokens are sampled, and whether several at once. Every promise of the engine holds for
// each, and nearly every test runs with each.
enum class SampledBy { kHost, kDevice, kDraftingDevice };

class EngineTestBase : public testing::Test {
 protected:
  static constexpr PageShape kShape = kFakeShape;
  static constexpr int64_t kLayers = 2;

  explicit EngineTestBase(SampledBy by) : sampled_by(by) {
    options.layers = kLayers;
    options.window = {.sinks = 4, .window = 60};
    options.max_sequences = 4;
    options.prefill_chunk = 16;
    options.tokens = fake_table();
    options.end_token_ids = {kEndToken};
    options.speculation = 0;  // a test counts steps; engine_speculation_test.cc guesses
  }

  ~EngineTestBase() override {
    if (!engine_) return;
    engine_->close();
    EXPECT_EQ(options.pools.free(), options.pools.all()) << "a sequence has leaked its memory";
    EXPECT_FALSE(model.too_long);
    EXPECT_FALSE(runner != nullptr && runner->has_failed);
  }

  // Starts the engine with the current `options` and `model`.
  Engine& engine() {
    if (engine_) return *engine_;
    const CacheLayers& layers = options.layers;
    const MemoryAmount all = options.max_sequences *
                             SequenceCache::memory_needed(options.window, layers, kEndlessLength);
    pool_ = std::make_unique<PagePool>(kShape, all.pages[0], /*poison=*/true);
    options.pools = pool_.get();
    if (layers.has_states()) {
      const int64_t lanes = StatePool::lanes_for(1 + lookahead());
      states_ = std::make_unique<StatePool>(layers.lane_bytes(), lanes,
                                            state_slots.value_or(all.states), /*poison=*/true);
      options.pools.states = states_.get();
    }
    if (options.kernels == nullptr) options.kernels = &reference_kernels();
    options.threads = &threads_;
    runner = maybe_add_runner(&model, options);
    engine_ = std::make_unique<Engine>(model, options);
    return *engine_;
  }

  // Gives a model a runner of its own if this test samples on the device; else returns null.
  FakeRunner* maybe_add_runner(RuleModel* of, const EngineOptions& with) const {
    if (sampled_by == SampledBy::kHost) return nullptr;
    auto made = std::make_unique<FakeRunner>(of, with.max_sequences, with.kernels, drafts());
    FakeRunner* const kept = made.get();
    of->set_step_runner(std::move(made));
    return kept;
  }

  std::shared_ptr<TokenStream> submit(Request request) {
    return engine().submit(std::move(request));
  }

  // Whether no sequence runs or waits, and all pages are free.
  bool is_idle() {
    const EngineStats stats = engine().stats();
    return stats.running == 0 && stats.waiting == 0 && stats.parked == 0 &&
           stats.free_pages == stats.pages;
  }

  // Tokens that steps may compute beyond the last one delivered.
  int64_t lookahead() const { return sampled_by == SampledBy::kHost ? 0 : 1; }
  int64_t drafts() const { return sampled_by == SampledBy::kDraftingDevice ? 1 : 0; }

  const SampledBy sampled_by;
  FakeModel model;
  FakeRunner* runner = nullptr;  // the model's, once there is an engine
  EngineOptions options;
  std::optional<int64_t> state_slots;  // if layers have states; by default for every sequence

 private:
  ThreadPool threads_{1};
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<StatePool> states_;
  std::unique_ptr<Engine> engine_;
};

class EngineTest : public EngineTestBase, public testing::WithParamInterface<SampledBy> {
 protected:
  EngineTest() : EngineTestBase(GetParam()) {}
};

inline std::string name_of(SampledBy sampled_by) {
  if (sampled_by == SampledBy::kHost) return "host";
  return sampled_by == SampledBy::kDevice ? "device" : "drafting_device";
}

#define SINKSTREAM_TEST_BOTH_SAMPLERS(suite)                                      \
  INSTANTIATE_TEST_SUITE_P(SampledBy, suite,                                      \
                           testing::Values(SampledBy::kHost, SampledBy::kDevice), \
                           [](const auto& info) { return ::sinkstream::name_of(info.param); })

}  // namespace sinkstream
