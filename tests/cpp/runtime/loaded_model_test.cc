#include "runtime/loaded_model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "model/random_weights.h"

namespace sinkstream {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kSinks = 4, kWindow = 60;

// Three sequences; a forward pass takes at most 8 + 3 rows.
LoadOptions small_options() {
  LoadOptions options;
  options.sinks = kSinks;
  options.window = kWindow;
  options.max_sequences = 3;
  options.prefill_chunk = 8;
  options.threads = 2;
  return options;
}

std::unique_ptr<LoadedModel> load(const LoadOptions& options = small_options(),
                                  const DecoderSpec& spec = small_spec()) {
  RandomWeights random(spec);
  return std::make_unique<LoadedModel>(spec, std::move(random.store), options, nullptr,
                                       std::vector<int32_t>());
}

std::vector<int32_t> text_of(int64_t tokens) {
  std::vector<int32_t> ids(tokens);
  for (int64_t i = 0; i < tokens; ++i) ids[i] = static_cast<int32_t>((7 * i + i * i) % 53);
  return ids;
}

struct Reply {
  std::vector<int32_t> ids;
  StreamStats stats;
};

// Takes all tokens of a stream. Ten seconds without news are a failure.
Reply read_all(TokenStream& stream) {
  Reply reply;
  StreamBatch batch;
  for (;;) {
    const TokenStream::Taken taken = stream.take(10s, &batch);
    if (taken != TokenStream::Taken::kBatch) {
      EXPECT_EQ(taken, TokenStream::Taken::kEnd) << "the stream delivers nothing";
      reply.stats = stream.stats();
      return reply;
    }
    for (const StreamToken& token : batch.tokens) reply.ids.push_back(token.id);
  }
}

Request request_of(int64_t prompt_tokens, int64_t max_tokens) {
  Request request;
  request.prompt = text_of(prompt_tokens);
  request.params.seed = 5;
  request.params.max_tokens = max_tokens;
  return request;
}

Reply generate(LoadedModel& model, int64_t prompt_tokens = 30, int64_t max_tokens = 700) {
  return read_all(*model.engine().submit(request_of(prompt_tokens, max_tokens)));
}

// Logits of `ids` [batch, tokens], and how often the forward pass checked for signals.
struct Forward {
  std::vector<float> logits;
  int64_t checks = 0;
};

Forward forward(LoadedModel& model, const std::vector<int32_t>& ids, int64_t batch,
                ForwardCache* cache) {
  const auto count = static_cast<int64_t>(ids.size());
  Forward found;
  found.logits.assign(count * model.spec().vocab_size, NAN);
  model.forward(ids, batch, count / batch, cache, found.logits.data(), [&] { ++found.checks; });
  return found;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <typename Exception>
std::string message_of(const LoadOptions& options) {
  try {
    load(options);
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(LoadedModel, GeneratesTheSameTokensAgainFarPastTheWindow) {
  const auto model = load();
  const Reply first = generate(*model), second = generate(*model);
  EXPECT_EQ(first.ids.size(), 700u);
  EXPECT_EQ(first.ids, second.ids);
  EXPECT_EQ(first.stats.live_tokens, kSinks + kWindow);
  // The last token has been sampled and not appended.
  EXPECT_EQ(first.stats.evicted_tokens, 30 + 700 - 1 - kSinks - kWindow);
}

TEST(LoadedModel, NeitherThreadsNorChunkNorOtherStreamsChangeAToken) {
  const Reply expected = generate(*load());
  LoadOptions options = small_options();
  options.threads = 1;
  options.prefill_chunk = 5;
  const auto model = load(options);
  const auto other = model->engine().submit(request_of(17, 200));
  EXPECT_EQ(generate(*model).ids, expected.ids);
  EXPECT_EQ(read_all(*other).ids.size(), 200u);
}

TEST(LoadedModel, CountsItsMemory) {
  const auto model = load();
  const PageShape shape = {.kv_heads = 1, .head_dim = 14, .type = DType::kFloat16};
  EXPECT_EQ(model->cache_type(), shape.type);
  EXPECT_EQ(model->bytes_per_token() * kPageRows, 2 * shape.bytes()) << "two layers";
  // 60 window tokens touch two pages wherever they begin, and 4 sinks one more.
  EXPECT_EQ(model->bytes_per_sequence(), 2 * 3 * shape.bytes());
  EXPECT_EQ(model->cache_bytes(), 3 * model->bytes_per_sequence());
  EXPECT_EQ(model->engine().stats().pages, 3 * 2 * 3);
  EXPECT_EQ(model->engine().stats().free_pages, 3 * 2 * 3);
  // All but the embedding, 53 rows of 42 columns at least, is read for each token.
  EXPECT_GE(model->weight_bytes() - model->weight_bytes_per_token(), 53 * 42 * 4);
  EXPECT_GT(model->weight_bytes_per_token(), 0);
  const int64_t scratch = model->scratch_bytes();
  EXPECT_GT(scratch, 0);
  generate(*model);
  EXPECT_EQ(model->scratch_bytes(), scratch);
  EXPECT_EQ(model->engine().stats().free_pages, 3 * 2 * 3) << "a stream has kept its pages";
}

TEST(LoadedModel, SaysWhatItWasLoadedWith) {
  LoadOptions options = small_options();
  options.dtype = "float32";
  options.kv_dtype = "bfloat16";
  options.kernels = "generic";
  const auto model = load(options);
  EXPECT_EQ(model->window().sinks, kSinks);
  EXPECT_EQ(model->window().window, kWindow);
  EXPECT_EQ(model->max_sequences(), 3);
  EXPECT_EQ(model->prefill_chunk(), 8);
  EXPECT_EQ(model->threads(), 2);
  EXPECT_EQ(model->input_type(), InputType::kFloat32);
  EXPECT_EQ(model->cache_type(), DType::kBFloat16);
  EXPECT_STREQ(model->kernels().kernels.name, "generic");
  EXPECT_FALSE(model->is_on_gpu());
}

TEST(LoadedModel, HasDefaultsForWhatIsLeftOpen) {
  LoadOptions options = small_options();
  options.prefill_chunk = 0;
  options.threads = 0;
  const auto model = load(options);
  EXPECT_EQ(model->prefill_chunk(), 256);
  EXPECT_GE(model->threads(), 1);
  EXPECT_EQ(model->input_type(), model->kernels().kernels.native_input);
  EXPECT_EQ(model->cache_type(), DType::kFloat16);
}

TEST(LoadedModel, ReadsLongerChunksIfATokenUsesFewExperts) {
  for (const auto [experts, chosen, chunk] :
       {std::tuple{8, 2, 256}, {32, 4, 512}, {128, 8, 1024}, {128, 1, 1024}, {7, 3, 256}}) {
    LoadOptions options = small_options();
    options.prefill_chunk = 0;
    ExpertsSpec mixture;
    mixture.experts = experts;
    mixture.chosen = chosen;
    mixture.expert.intermediate_size = 3;
    const DecoderSpec spec =
        with_blocks(small_spec(), [&](BlockSpec* block) { block->feed_forward = mixture; });
    EXPECT_EQ(load(options, spec)->prefill_chunk(), chunk) << experts << " choose " << chosen;
    options.prefill_chunk = 8;
    EXPECT_EQ(load(options, spec)->prefill_chunk(), 8);
  }
}

TEST(LoadedModel, RefusesTypesAndKernelsThatDoNotExist) {
  LoadOptions options = small_options();
  options.dtype = "float64";
  EXPECT_NE(message_of<InternalError>(options).find("there is no type float64"), std::string::npos);
  options = small_options();
  options.kv_dtype = "int4";
  EXPECT_NE(message_of<InternalError>(options).find("there is no type int4"), std::string::npos);
  options = small_options();
  options.kernels = "abacus";
  EXPECT_NE(message_of<InvalidArgument>(options).find("abacus"), std::string::npos);
}

TEST(LoadedModel, RefusesTypesThatAGpuDoesNotTake) {
  const cuda::Plugin untouched{};
  LoadOptions options = small_options();
  options.gpu = &untouched;
  for (const std::string dtype : {"float32", "int16", "int8"}) {
    options.dtype = dtype;
    EXPECT_EQ(message_of<InvalidArgument>(options),
              "load: `dtype` must be \"auto\" or \"bfloat16\" on a GPU, but is \"" + dtype + "\".");
  }
  options.dtype = "auto";
  options.kv_dtype = "float32";
  EXPECT_EQ(message_of<InvalidArgument>(options),
            "load: `kv_dtype` must be one of \"auto\", \"bfloat16\", \"float16\", \"int8\" on a "
            "GPU, but is \"float32\".");
}

TEST(LoadedModel, LetsARequestChooseItsSinks) {
  const auto model = load();
  Request request = request_of(30, 300);
  request.sinks = 20;
  const Reply more = read_all(*model->engine().submit(std::move(request)));
  EXPECT_EQ(more.stats.live_tokens, kSinks + kWindow) << "the capacity stays";
  EXPECT_NE(more.ids, generate(*model, 30, 300).ids);
}

TEST(LoadedModel, ForwardGivesTheSameBitsWithACacheInPiecesAndWithoutOne) {
  const auto model = load();
  constexpr int64_t kBatch = 2, kTokens = 40, kBegin = 17;
  const std::vector<int32_t> ids = text_of(kBatch * kTokens);
  const Forward dense = forward(*model, ids, kBatch, nullptr);
  EXPECT_EQ(dense.checks, 3) << "between four chunks of at most 11 tokens";

  const int64_t vocab = model->spec().vocab_size;
  const auto cache = model->new_cache(kBatch, Window{.sinks = 0, .window = kTokens});
  std::vector<float> cached(ids.size() * vocab, NAN);
  for (const auto& [begin, end] : {std::pair{int64_t{0}, kBegin}, std::pair{kBegin, kTokens}}) {
    std::vector<int32_t> piece;
    for (int64_t row = 0; row < kBatch; ++row) {
      const auto from = ids.begin() + row * kTokens;
      piece.insert(piece.end(), from + begin, from + end);
    }
    const std::vector<float> logits = forward(*model, piece, kBatch, cache.get()).logits;
    for (int64_t row = 0; row < kBatch; ++row) {
      const int64_t count = (end - begin) * vocab;
      std::copy_n(logits.begin() + row * count, count,
                  cached.begin() + (row * kTokens + begin) * vocab);
    }
  }
  EXPECT_TRUE(same_bits(cached, dense.logits));
  EXPECT_EQ(cache->batch(), kBatch);
  EXPECT_EQ(cache->row().length(), kTokens);
  EXPECT_EQ(cache->row().evicted(), 0);
}

TEST(LoadedModel, ForwardOfAShortBatchIsTheSameAsRowByRow) {
  const auto model = load();
  const std::vector<int32_t> ids = text_of(10);
  std::vector<float> one_by_one;
  for (int64_t row = 0; row < 2; ++row) {
    const std::vector<int32_t> own(ids.begin() + row * 5, ids.begin() + (row + 1) * 5);
    const std::vector<float> logits = forward(*model, own, 1, nullptr).logits;
    one_by_one.insert(one_by_one.end(), logits.begin(), logits.end());
  }
  EXPECT_TRUE(same_bits(forward(*model, ids, 2, nullptr).logits, one_by_one));
}

TEST(LoadedModel, ForwardEvictsFromACacheThatIsFull) {
  const auto model = load();
  const auto cache = model->new_cache(1, model->window());
  forward(*model, text_of(300), 1, cache.get());
  EXPECT_EQ(cache->row().length(), 300);
  EXPECT_EQ(cache->row().live(), kSinks + kWindow);
  EXPECT_EQ(cache->row().evicted(), 300 - kSinks - kWindow);
}

TEST(LoadedModel, ASignalEndsAForwardBetweenTwoChunks) {
  const auto model = load();
  const auto cache = model->new_cache(1, model->window());
  const std::vector<int32_t> ids = text_of(30);
  std::vector<float> logits(30 * model->spec().vocab_size);
  const auto raise = [] { throw std::runtime_error("a signal"); };
  EXPECT_THROW(model->forward(ids, 1, 30, cache.get(), logits.data(), raise), std::runtime_error);
  EXPECT_EQ(cache->row().length(), 11) << "the first chunk stays";
  EXPECT_EQ(generate(*model, 30, 100).ids.size(), 100u);
}

TEST(LoadedModel, ACopyOfACacheContinuesByItself) {
  const auto model = load();
  const auto cache = model->new_cache(2, model->window());
  forward(*model, text_of(100), 2, cache.get());
  const auto copy = model->copy_of(*cache);
  EXPECT_EQ(copy->model, model->serial());
  const std::vector<int32_t> more = text_of(6);
  EXPECT_TRUE(same_bits(forward(*model, more, 2, cache.get()).logits,
                        forward(*model, more, 2, copy.get()).logits));
  model->evict_range(copy.get(), 10, 30);
  EXPECT_EQ(copy->row().live(), cache->row().live() - 20);
  EXPECT_FALSE(same_bits(forward(*model, more, 2, cache.get()).logits,
                         forward(*model, more, 2, copy.get()).logits));
  EXPECT_THROW(model->evict_range(copy.get(), kSinks - 1, 30), InvalidArgument) << "a sink";
}

TEST(LoadedModel, ForwardAndStreamsShareTheModel) {
  const auto model = load();
  const std::vector<float> expected = forward(*model, text_of(40), 1, nullptr).logits;
  const std::vector<int32_t> ids = generate(*model).ids;
  const auto stream = model->engine().submit(request_of(30, 700));
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(same_bits(forward(*model, text_of(40), 1, nullptr).logits, expected));
  }
  EXPECT_EQ(read_all(*stream).ids, ids);
}

TEST(LoadedModel, HasTheFingerprintOfItsWeightsAndSpec) {
  DecoderSpec other = small_spec();
  other.final_norm.eps = 2e-5f;
  const auto model = load();
  const std::string fingerprint = model->fingerprint();
  EXPECT_EQ(fingerprint.size(), 32u);
  EXPECT_EQ(model->fingerprint(), fingerprint);
  EXPECT_EQ(load()->fingerprint(), fingerprint);
  EXPECT_NE(load(small_options(), other)->fingerprint(), fingerprint);
  EXPECT_NE(load()->serial(), model->serial());
}

TEST(LoadedModel, ClosesTwiceAndAnswersNothingAfterwards) {
  const auto model = load();
  const auto stream = model->engine().submit(request_of(30, int64_t{1} << 40));
  model->close();
  model->close();
  read_all(*stream);
  EXPECT_EQ(stream->finish_reason(), FinishReason::kCancelled);
  EXPECT_THROW(forward(*model, text_of(3), 1, nullptr), EngineDead);
  EXPECT_THROW(model->engine().submit(request_of(3, 3)), EngineDead);
  EXPECT_THROW(model->fingerprint(), EngineDead);
}

}  // namespace
}  // namespace sinkstream
