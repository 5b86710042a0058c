// A complete decoder against the definition, with every kind of eviction. decoder_test.cc compares
// the decoder with itself; this compares it with an independent implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "common/errors.h"
#include "kernels/choose.h"
#include "kernels/tolerance.h"
#include "lanes.h"
#include "model/literal_decoder.h"
#include "model/random_decoder.h"

namespace sinkstream {
namespace {

constexpr int64_t kEndless = int64_t{1} << 60;
constexpr int64_t kMostTokens = 400;
// Of logits, relative to a row's largest: two layers of float32. A misplaced key costs 1e-2.
constexpr double kTolerance = 1e-5;

std::vector<int32_t> random_tokens(int64_t count, const DecoderSpec& spec) {
  std::mt19937 random(5);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % spec.vocab_size);
  return tokens;
}

// The rotary schemes: frequencies of a particular model, both pairings, heads that are rotated in
// part, and an attention factor.
std::vector<DecoderSpec> schemes() {
  std::vector<DecoderSpec> specs(3, small_spec());
  RopeSpec& llama3 = specs[1].blocks.front().attention().rope;
  for (int pair = 3; pair < 7; ++pair) llama3.inverse_frequencies[pair] /= 8;
  llama3.pairing = Pairing::kInterleaved;
  RopeSpec& partial = specs[2].blocks.front().attention().rope;
  partial.inverse_frequencies.resize(4);
  partial.attention_factor = 1.3;
  return specs;
}

using Logits = std::vector<LiteralDecoder::Row>;

// One stream: the decoder's logits, and the tokens that were live for each token.
class Stream {
 public:
  Stream(RandomDecoder* model, const Window& window)
      : model_(model),
        live_(window.sinks, window.window),
        memory_(poisoned_pools(
            *model->decoder, model->spec.cache_layers(),
            SequenceCache::memory_needed(window, model->spec.cache_layers(), kEndless))),
        cache(memory_.pools(), window, model->spec.cache_layers(), kEndless) {
    for (const BlockSpec& block : model->spec.blocks) {
      const int64_t own = own_window(block);
      if (own > 0 && own <= window.window) own_live_.emplace(own, LiveTokens(0, own));
    }
  }

  // Feeds tokens in pieces of at most `cut`.
  void feed(const std::vector<int32_t>& tokens, int64_t cut) {
    const auto count = static_cast<int64_t>(tokens.size());
    for (int64_t begin = 0; begin < count; begin += cut) {
      const ForwardSpan span{&cache, tokens.data() + begin, std::min(cut, count - begin),
                             LogitsOf::kAll};
      const size_t before = found_.size();
      found_.resize(before + span.count * model_->spec.vocab_size, NAN);
      forward_and_advance(*model_->decoder, {&span, 1}, found_.data() + before);
    }
    for (const int32_t token : tokens) {
      const auto t = static_cast<int64_t>(tokens_.size());
      seen_.push_back(live_.add(t));
      for (auto& [own, live] : own_live_) own_seen_[own].push_back(live.add(t));
      tokens_.push_back(token);
    }
  }
  void evict_for_space(int64_t count) {
    cache.evict_for_space(count);
    live_.evict_for_space(count);
    for (auto& [own, live] : own_live_) live.keep_only(live_);
  }
  void evict_range(int64_t begin, int64_t end) {
    model_->decoder->evict_range(&cache, begin, end);
    live_.evict_range(begin, end);
    for (auto& [own, live] : own_live_) live.keep_only(live_);
  }

  // The definition's logits of all tokens, which do not depend on how they were fed.
  Logits definition() const {
    std::vector<const LiteralDecoder::Seen*> seen(model_->spec.layers(), &seen_);
    for (int64_t layer = 0; layer < model_->spec.layers(); ++layer) {
      const auto own = own_seen_.find(own_window(model_->spec.block(layer)));
      if (own != own_seen_.end()) seen[static_cast<size_t>(layer)] = &own->second;
    }
    return LiteralDecoder(*model_).logits(tokens_, seen);
  }
  // Errors of the tokens from `begin` on, each relative to its largest logit.
  std::vector<double> errors(const Logits& expected, int64_t begin = 0) const {
    const int64_t vocab = model_->spec.vocab_size;
    std::vector<double> errors;
    for (auto t = static_cast<size_t>(begin); t < tokens_.size(); ++t) {
      const std::vector<float> row(expected[t].begin(), expected[t].end());
      double largest = 0;
      for (const float x : row) largest = std::max(largest, std::abs(double{x}));
      errors.push_back(worst_error(found_.data() + t * vocab, row.data(), vocab, largest));
    }
    return errors;
  }
  double worst(const Logits& expected) const {
    const std::vector<double> all = errors(expected);
    return *std::max_element(all.begin(), all.end());
  }
  double worst() const { return worst(definition()); }

 private:
  static int64_t own_window(const BlockSpec& block) {
    return block.recurrent() == nullptr ? block.attention().window : 0;
  }

  RandomDecoder* model_;
  LiveTokens live_;
  OwnedPools memory_;
  std::vector<int32_t> tokens_;
  LiteralDecoder::Seen seen_;
  std::map<int64_t, LiveTokens> own_live_;  // by window, of the layers that keep their own
  std::map<int64_t, LiteralDecoder::Seen> own_seen_;
  std::vector<float> found_;  // [tokens, vocab]

 public:
  SequenceCache cache;
};

class DecoderDefinition : public testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override {
    if (!GetParam()->supported()) GTEST_SKIP() << "this processor lacks " << GetParam()->name;
    kernels_ = choose_kernels(GetParam()->name).kernels;
  }
  RandomDecoder make(const DecoderSpec& spec) {
    return {kernels_, 1, {InputType::kFloat32, DType::kFloat32, kMostTokens}, spec};
  }
  Kernels kernels_;
};

TEST_P(DecoderDefinition, HoldsForFourCapacitiesInEveryRotaryScheme) {
  for (const DecoderSpec& spec : schemes()) {
    RandomDecoder model = make(spec);
    for (const Window window : {Window{4, 9}, Window{0, 7}, Window{1, 1}, Window{3, 66}}) {
      Logits expected;
      for (const int64_t cut : {1, 6, 400}) {
        Stream stream(&model, window);
        stream.feed(random_tokens(4 * window.capacity(), spec), cut);
        if (expected.empty()) expected = stream.definition();
        EXPECT_LE(stream.worst(expected), kTolerance)
            << "S " << window.sinks << " W " << window.window << " in pieces of " << cut;
      }
    }
  }
}

TEST_P(DecoderDefinition, HoldsFarPastTheWindowsThatLayersHaveOfTheirOwn) {
  for (const DecoderSpec& spec : {alternating_spec(true), alternating_spec(false)}) {
    RandomDecoder model = make(spec);
    // Wider than theirs, as wide, narrower, and so wide that nothing else is evicted.
    for (const Window window : {Window{4, 60}, Window{2, 32}, Window{3, 31}, Window{0, 400}}) {
      Logits expected;
      for (const int64_t cut : {1, 50, 400}) {
        Stream stream(&model, window);
        stream.feed(random_tokens(330, spec), cut);
        if (expected.empty()) expected = stream.definition();
        EXPECT_LE(stream.worst(expected), kTolerance)
            << "S " << window.sinks << " W " << window.window << " in pieces of " << cut;
      }
    }
  }
}

TEST_P(DecoderDefinition, HoldsInEveryKindOfBlockFarPastTheWindow) {
  for (const auto& [name, spec] : dense_specs()) {
    RandomDecoder model = make(spec);
    for (const Window window : {Window{4, 40}, Window{2, 32}, Window{3, 31}}) {
      Logits expected;
      for (const int64_t cut : {1, 50, 400}) {
        Stream stream(&model, window);
        stream.feed(random_tokens(130, spec), cut);
        if (expected.empty()) expected = stream.definition();
        EXPECT_LE(stream.worst(expected), kTolerance)
            << name << ", S " << window.sinks << " W " << window.window << " in pieces of " << cut;
      }
    }
  }
}

// What router each token has decides by itself which experts read it; a near tie would be decided
// otherwise in double, and cost more than kTolerance.
TEST_P(DecoderDefinition, HoldsForEveryKindOfRouterFarPastTheWindow) {
  for (const auto& [name, spec] : expert_specs()) {
    RandomDecoder model = make(spec);
    Logits expected;
    for (const int64_t cut : {1, 50, 400}) {
      Stream stream(&model, {4, 40});
      stream.feed(random_tokens(130, spec), cut);
      if (expected.empty()) expected = stream.definition();
      EXPECT_LE(stream.worst(expected), kTolerance) << name << " in pieces of " << cut;
    }
  }
}

TEST_P(DecoderDefinition, HoldsAfterACutInTheMiddleInEveryRotaryScheme) {
  std::vector<DecoderSpec> specs = schemes();
  for (const auto& [name, spec] : dense_specs()) specs.push_back(spec);
  for (const bool last : {true, false}) specs.push_back(alternating_spec(last));
  for (const auto& [d, spec] : indexed(specs)) {
    RandomDecoder model = make(spec);
    for (const auto& [s, window] : indexed({Window{4, 30}, Window{2, 70}, Window{0, 9}})) {
      const int64_t sinks = window.sinks, most = window.capacity() - 1;
      for (const auto& [i, cut] : indexed({std::pair{sinks + 5, sinks + 7},
                                           {sinks, sinks + 1},
                                           {sinks + 3, most},
                                           {most - 2, most - 1},
                                           {sinks, most}})) {
        if (!runs_case(3, {d, s, i})) continue;
        const auto [begin, end] = cut;
        Stream stream(&model, window);
        stream.feed(random_tokens(2 * window.capacity(), spec), 50);
        stream.evict_range(begin, end);
        EXPECT_EQ(stream.cache.live(), most - (end - begin));
        stream.feed(random_tokens(5, spec), 1);
        stream.evict_range(sinks, sinks + 2);  // again, where tokens were cut
        stream.feed(random_tokens(2 * window.capacity(), spec), 50);
        EXPECT_LE(stream.worst(), kTolerance)
            << "S " << sinks << " W " << window.window << " cut from " << begin << " to " << end;
      }
    }
  }
}

TEST_P(DecoderDefinition, HoldsAfterRoomWasMadeForATurn) {
  for (const DecoderSpec& spec : {small_spec(), alternating_spec(true)}) {
    RandomDecoder model = make(spec);
    for (const Window window : {Window{4, 9}, Window{0, 70}, Window{1, 2}, Window{3, 40}}) {
      for (const int64_t length : {int64_t{2}, window.capacity() - 1, 3 * window.capacity()}) {
        Stream stream(&model, window);
        stream.feed(random_tokens(length, spec), 50);
        for (const int64_t count : {window.window - 1, window.window / 2, int64_t{1}}) {
          stream.evict_for_space(count);
          stream.feed(random_tokens(count, spec), 50);
        }
        stream.feed(random_tokens(2 * window.capacity(), spec), 7);
        EXPECT_LE(stream.worst(), kTolerance)
            << "S " << window.sinks << " W " << window.window << " after " << length;
      }
    }
  }
}

double root_mean_square(const std::vector<double>& numbers) {
  double squares = 0;
  for (const double x : numbers) squares += x * x;
  return std::sqrt(squares / static_cast<double>(numbers.size()));
}

TEST_P(DecoderDefinition, IsAsCloseAtIndexTenMillionAsAfterTheFirstFill) {
  const Window window{4, 60};
  std::vector<DecoderSpec> specs = schemes();
  specs.push_back(convolution_spec(3, 7));
  for (const DecoderSpec& spec : specs) {
    RandomDecoder model = make(spec);
    const auto tokens = random_tokens(6 * window.capacity(), spec);
    Stream near(&model, window), far(&model, window);
    near.feed(tokens, 64);
    far.feed({tokens.begin(), tokens.begin() + window.sinks}, 64);
    far.cache.jump(10'000'000);
    far.feed({tokens.begin() + window.sinks, tokens.end()}, 64);
    const int64_t full = window.capacity();
    const Logits expected = far.definition();
    EXPECT_LE(far.worst(expected), kTolerance);
    EXPECT_LE(root_mean_square(far.errors(expected, full)),
              1.5 * root_mean_square(near.errors(near.definition(), full)));
  }
}

TEST_P(DecoderDefinition, LeavesSinkKeysAsTheyWereFor100000Tokens) {
  if (GetParam() == &reference_kernels())
    GTEST_SKIP() << "100,000 tokens are too many for the slow table";
  DecoderSpec spec = small_spec();
  spec.block_of_layer = {0};
  spec.hidden_size = spec.blocks.front().dense().intermediate_size = 16;
  spec.blocks.front().attention().heads = 1;
  for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8}) {
    RandomDecoder model(kernels_, 1, {InputType::kFloat32, type, kMostTokens}, spec);
    const Window window{4, 28};
    const auto tokens = random_tokens(kMostTokens, spec);
    const int64_t bytes = model.decoder->page_shape(0).bytes();
    PagePool pool(model.decoder->page_shape(0),
                  SequenceCache::memory_needed(window, 1, kEndless).pages[0], true);
    SequenceCache cache(&pool, window, 1, kEndless);
    const auto feed = [&](int64_t count) {
      const ForwardSpan span{&cache, tokens.data(), count, LogitsOf::kNone};
      forward_and_advance(*model.decoder, {&span, 1}, nullptr);
    };
    feed(window.sinks);
    std::vector<std::byte> before(cache.sink_pages(0)[0], cache.sink_pages(0)[0] + bytes);
    while (cache.length() < 100'000) {
      feed(cache.length() % 7 == 0 ? 1 : kMostTokens);
      ASSERT_EQ(std::memcmp(before.data(), cache.sink_pages(0)[0], bytes), 0)
          << name_of(type) << " before index " << cache.length();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, DecoderDefinition, testing::ValuesIn(all_kernels()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace sinkstream
