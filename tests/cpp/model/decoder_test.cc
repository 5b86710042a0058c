#include "model/cpu/decoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "cache/snapshot.h"
#include "common/errors.h"

#include "heap/heap.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "lanes.h"
#include "model/random_decoder.h"

namespace sinkstream {
namespace {

constexpr int64_t kEndless = int64_t{1} << 60;

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

// One sequence with poisoned pages of its own.
struct OneSequence {
  OneSequence(const RandomDecoder& model, const Window& window)
      : memory(poisoned_pools(
            *model.decoder, model.spec.cache_layers(),
            SequenceCache::memory_needed(window, model.spec.cache_layers(), kEndless))),
        cache(memory.pools(), window, model.spec.cache_layers(), kEndless) {}
  OwnedPools memory;
  SequenceCache cache;
};

// The logits of all tokens, read in pieces of `chunk`.
std::vector<float> logits_of(RandomDecoder& model, const Window& window,
                             const std::vector<int32_t>& tokens, int64_t chunk) {
  OneSequence sequence(model, window);
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<float> logits(count * model.spec.vocab_size, NAN);
  for (int64_t t = 0; t < count; t += chunk) {
    const ForwardSpan span{&sequence.cache, tokens.data() + t, std::min(chunk, count - t),
                           LogitsOf::kAll};
    forward_and_advance(*model.decoder, {&span, 1}, logits.data() + t * model.spec.vocab_size);
  }
  return logits;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

// The emulated bodies of amx and avx512 before the tables of this build: what the first lacks, the
// second has.
std::vector<const Kernels*> tested_tables() {
  std::vector<const Kernels*> tables;
#if !defined(__SANITIZE_THREAD__)  // as in kernels/tables.h
  tables = {&amx_emulated_kernels(), &avx512_emulated_kernels()};
#endif
  for (const Kernels* table : all_kernels()) tables.push_back(table);
  return tables;
}

// Then one cache type is enough: `reference` has one body for all types, and the emulated tables
// are tested op by op with each.
bool is_slow(const Kernels* table) {
  return table == &reference_kernels() || table == &amx_emulated_kernels() ||
         table == &avx512_emulated_kernels();
}

class DecoderOnTable : public testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override {
    if (!GetParam()->supported()) GTEST_SKIP() << "this processor lacks " << GetParam()->name;
    kernels_ = choose_kernels(GetParam()->name, tested_tables()).kernels;
  }
  RandomDecoder make(int threads, DType cache_type = DType::kFloat32,
                     const DecoderSpec& spec = small_spec()) {
    return {kernels_, threads, {InputType::kFloat32, cache_type, 400}, spec};
  }
  // With bfloat16 matrices, for which tables have code paths of their own with 16-bit inputs.
  RandomDecoder make_bf16(int threads, InputType input) {
    std::map<std::string, Storage> stored = {{"output", Storage::kBF16}};
    for (const char* layer : {"layers.0.", "layers.1."}) {
      for (const char* matrix : {"q", "k", "v", "o", "gate", "up", "down"}) {
        stored[std::string(layer) + matrix] = Storage::kBF16;
      }
    }
    return {kernels_, threads, {input, DType::kFloat16, 400}, small_spec(), stored};
  }
  static void expect_same_in_any_batch(RandomDecoder& model);

  Kernels kernels_;
};

TEST_P(DecoderOnTable, ChunkSizeChangesNoBit) {
  for (const auto& [t, type] :
       indexed({DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8})) {
    if (type != DType::kFloat32 && is_slow(GetParam())) break;
    RandomDecoder model = make(2, type);
    for (const auto& [s, window] :
         indexed({Window{4, 9}, Window{0, 64}, Window{3, 130}, Window{70, 5}})) {
      const auto tokens = random_tokens(400, model.spec.vocab_size, 1);
      const auto whole = logits_of(model, window, tokens, 400);
      for (const float value : whole) ASSERT_TRUE(std::isfinite(value));
      for (const auto& [i, chunk] : indexed({1, 3, 63, 64, 65, 200})) {
        if (!runs_case(3, {t, s, i})) continue;
        ASSERT_TRUE(same_bits(whole, logits_of(model, window, tokens, chunk)))
            << name_of(type) << " S " << window.sinks << " W " << window.window << " chunk "
            << chunk;
      }
    }
  }
}

TEST_P(DecoderOnTable, ChunkSizeChangesNoBitWhereLayersHaveTheirOwnWindows) {
  for (const bool last_has_window : {true, false}) {
    RandomDecoder model = make(2, DType::kFloat32, alternating_spec(last_has_window));
    for (const Window window : {Window{4, 9}, Window{3, 130}}) {
      const auto tokens = random_tokens(300, model.spec.vocab_size, 1);
      const auto whole = logits_of(model, window, tokens, 300);
      for (const float value : whole) ASSERT_TRUE(std::isfinite(value));
      for (const int64_t chunk : {1, 31, 65, 200}) {
        ASSERT_TRUE(same_bits(whole, logits_of(model, window, tokens, chunk)))
            << last_has_window << " S " << window.sinks << " W " << window.window << " chunk "
            << chunk;
      }
    }
  }
}

TEST_P(DecoderOnTable, NeitherChunkSizeNorThreadsChangeABitInAnyKindOfBlock) {
  const Window window{4, 37};
  for (const auto& [name, spec] : block_specs()) {
    RandomDecoder model = make(2, DType::kFloat32, spec), alone = make(1, DType::kFloat32, spec);
    const auto tokens = random_tokens(150, model.spec.vocab_size, 1);
    const auto whole = logits_of(model, window, tokens, 150);
    for (const float value : whole) ASSERT_TRUE(std::isfinite(value));
    for (const int64_t chunk : {1, 31, 65}) {
      ASSERT_TRUE(same_bits(whole, logits_of(model, window, tokens, chunk)))
          << name << ", chunk " << chunk;
    }
    ASSERT_TRUE(same_bits(whole, logits_of(alone, window, tokens, 77))) << name;
  }
}

TEST_P(DecoderOnTable, ThreadCountChangesNoBit) {  // tsan
  const Window window{4, 100};
  const auto expect_equal = [&](const char* what, const auto& make_with) {
    std::vector<float> expected;
    for (const int threads : {1, 2, 3}) {
      RandomDecoder model = make_with(threads);
      const auto tokens = random_tokens(300, model.spec.vocab_size, 2);
      const auto logits = logits_of(model, window, tokens, 77);
      if (expected.empty()) expected = logits;
      EXPECT_TRUE(same_bits(expected, logits)) << what << ", threads " << threads;
    }
  };
  expect_equal("float32 weights", [&](int threads) { return make(threads); });
  for (const InputType input : kInputTypes) {
    expect_equal(name_of(input), [&](int threads) { return make_bf16(threads, input); });
  }
}

TEST_P(DecoderOnTable, ChunkSizeChangesNoBitWithNarrowInputs) {
  const Window window{4, 130};
  for (const InputType input : {InputType::kBFloat16, InputType::kInt16, InputType::kInt8}) {
    RandomDecoder model = make_bf16(2, input);
    const auto tokens = random_tokens(300, model.spec.vocab_size, 3);
    const auto whole = logits_of(model, window, tokens, 300);
    for (const float value : whole) ASSERT_TRUE(std::isfinite(value));
    for (const int64_t chunk : {1, 2, 3, 7, 64, 131}) {
      ASSERT_TRUE(same_bits(whole, logits_of(model, window, tokens, chunk)))
          << name_of(input) << ", chunk " << chunk;
    }
  }
}

// The restored sequence continues token by token for three windows, the original in one chunk.
TEST_P(DecoderOnTable, ASnapshotInTheMiddleChangesNoBit) {
  std::vector<std::pair<DType, DecoderSpec>> kinds = {
      {DType::kFloat32, small_spec()},         {DType::kFloat32, alternating_spec(true)},
      {DType::kFloat16, small_spec()},         {DType::kBFloat16, small_spec()},
      {DType::kInt8, alternating_spec(false)}, {DType::kInt8, small_spec()}};
  for (const auto& [name, spec] : dense_specs()) kinds.emplace_back(DType::kFloat16, spec);
  for (const auto& [type, spec] : kinds) {
    if (type != DType::kFloat32 && is_slow(GetParam())) break;
    RandomDecoder model = make(1, type, spec);
    const int64_t vocab = model.spec.vocab_size;
    for (const Window window : {Window{4, 9}, Window{66, 35}}) {
      for (const int64_t read : {int64_t{3}, window.capacity(), 2 * window.capacity() + 5}) {
        const int64_t count = 3 * window.capacity();
        const auto tokens = random_tokens(read + count, vocab, 8);
        OneSequence whole(model, window), restored(model, window);
        const ForwardSpan prompt{&whole.cache, tokens.data(), read, LogitsOf::kNone};
        forward_and_advance(*model.decoder, {&prompt, 1}, nullptr);
        const SnapshotShape shape = snapshot_shape(whole.cache);
        std::vector<std::byte> keys_values(shape.bytes());
        std::vector<float> scales(shape.scale_bytes() / sizeof(float));
        std::vector<std::byte> states(shape.state_bytes());
        snapshot(whole.cache, keys_values.data(), scales.data(), states.data());
        restore(&restored.cache, state_of(whole.cache), keys_values.data(), scales.data(),
                states.data());
        std::vector<float> expected(count * vocab, NAN), logits(count * vocab, NAN);
        const ForwardSpan rest{&whole.cache, tokens.data() + read, count, LogitsOf::kAll};
        forward_and_advance(*model.decoder, {&rest, 1}, expected.data());
        for (int64_t t = 0; t < count; ++t) {
          const ForwardSpan span{&restored.cache, tokens.data() + read + t, 1, LogitsOf::kLast};
          forward_and_advance(*model.decoder, {&span, 1}, logits.data() + t * vocab);
        }
        for (const float value : logits) ASSERT_TRUE(std::isfinite(value));
        ASSERT_TRUE(same_bits(expected, logits)) << name_of(type) << " S " << window.sinks << " W "
                                                 << window.window << " after " << read;
      }
    }
  }
}

TEST_P(DecoderOnTable, NeitherCompanyNorWhichLogitsAreWantedChangesABit) {  // tsan
  std::vector<DecoderSpec> specs = {small_spec(), alternating_spec(true), alternating_spec(false)};
  for (const auto& [name, spec] : block_specs()) specs.push_back(spec);
  for (const DecoderSpec& spec : specs) {
    RandomDecoder model = make(2, DType::kFloat32, spec);
    expect_same_in_any_batch(model);
  }
}

void DecoderOnTable::expect_same_in_any_batch(RandomDecoder& model) {
  const int64_t vocab = model.spec.vocab_size;
  const Window windows[] = {{4, 20}, {0, 70}, {66, 33}, {1, 1}};
  constexpr int64_t kTokens = 240;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> alone;
  std::vector<std::unique_ptr<OneSequence>> sequences;
  for (int i = 0; i < 4; ++i) {
    tokens.push_back(random_tokens(kTokens, vocab, 10 + i));
    alone.push_back(logits_of(model, windows[i], tokens[i], kTokens));
    sequences.push_back(std::make_unique<OneSequence>(model, windows[i]));
  }
  // In each step a sequence has no, one or many tokens and wants some of their logits.
  std::mt19937 random(3);
  std::vector<float> logits;
  int64_t compared = 0;
  for (bool is_done = false; !is_done;) {
    is_done = true;
    std::vector<ForwardSpan> spans;
    std::vector<const float*> expected;  // the wanted rows
    for (int i = 0; i < 4; ++i) {
      const int64_t at = sequences[i]->cache.length();
      const int64_t wishes[] = {0, 1, 1, 7, 80};
      const int64_t count = std::min(wishes[random() % 5], kTokens - at);
      is_done = is_done && at == kTokens;
      if (count == 0) continue;
      const LogitsOf wanted[] = {LogitsOf::kNone, LogitsOf::kLast, LogitsOf::kAll};
      spans.push_back({&sequences[i]->cache, tokens[i].data() + at, count, wanted[random() % 3]});
      const int64_t rows = spans.back().logits == LogitsOf::kAll    ? count
                           : spans.back().logits == LogitsOf::kLast ? 1
                                                                    : 0;
      for (int64_t row = count - rows; row < count; ++row) {
        expected.push_back(alone[i].data() + (at + row) * vocab);
      }
    }
    if (spans.empty()) continue;
    logits.assign((expected.size() + 1) * vocab, -77.0f);
    forward_and_advance(*model.decoder, spans, logits.data());
    for (size_t row = 0; row < expected.size(); ++row) {
      ASSERT_EQ(0, std::memcmp(logits.data() + row * vocab, expected[row], vocab * 4)) << row;
    }
    for (int64_t i = 0; i < vocab; ++i) ASSERT_EQ(logits[expected.size() * vocab + i], -77.0f);
    compared += static_cast<int64_t>(expected.size());
  }
  EXPECT_GT(compared, 100);
}

TEST_P(DecoderOnTable, TakesNothingFromTheHeap) {
  if (GetParam() == &reference_kernels()) {
    GTEST_SKIP() << "the slow table keeps its sums in vectors";
  }
  std::vector<std::pair<DType, DecoderSpec>> kinds = {{DType::kFloat32, small_spec()},
                                                      {DType::kFloat32, alternating_spec(true)},
                                                      {DType::kInt8, small_spec()}};
  for (const auto& [name, spec] : block_specs()) kinds.emplace_back(DType::kFloat32, spec);
  for (const auto& [type, spec] : kinds) {
    RandomDecoder model = make(2, type, spec);
    const int64_t vocab = model.spec.vocab_size;
    const Window window{4, 70};
    OneSequence one(model, window), other(model, window);
    const auto tokens = random_tokens(400, vocab, 6);
    std::vector<float> logits(400 * vocab);
    const int64_t before = allocations();
    for (int64_t t = 0; t < 130; ++t) {
      const int64_t many = t % 33 == 0 ? 1 + t : 1;  // every step of long prompts takes minutes
      const ForwardSpan spans[] = {{&one.cache, tokens.data() + t, 1, LogitsOf::kLast},
                                   {&other.cache, tokens.data(), many, LogitsOf::kNone}};
      forward_and_advance(*model.decoder, spans, logits.data());
    }
    const ForwardSpan all{&one.cache, tokens.data(), 400, LogitsOf::kAll};
    forward_and_advance(*model.decoder, {&all, 1}, logits.data());
    EXPECT_EQ(allocations(), before) << name_of(type);
  }
}

TEST_P(DecoderOnTable, WritesOnlyTheWantedLogits) {
  RandomDecoder model = make(1);
  const int64_t vocab = model.spec.vocab_size;
  const Window window{4, 20};
  const auto tokens = random_tokens(10, vocab, 4);
  const auto all = logits_of(model, window, tokens, 10);
  OneSequence none(model, window), last(model, window);
  const ForwardSpan spans[] = {{&none.cache, tokens.data(), 10, LogitsOf::kNone},
                               {&last.cache, tokens.data(), 10, LogitsOf::kLast}};
  std::vector<float> logits(2 * vocab, -77.0f);
  forward_and_advance(*model.decoder, spans, logits.data());
  EXPECT_EQ(0, std::memcmp(logits.data(), all.data() + 9 * vocab, vocab * 4));
  for (int64_t i = vocab; i < 2 * vocab; ++i) ASSERT_EQ(logits[i], -77.0f);
}

TEST_P(DecoderOnTable, AgreesWithTheReferenceTable) {
  const Window window{4, 30};
  const Kernels reference = choose_kernels("reference").kernels;
  RandomDecoder expected_model(reference, 1, {InputType::kFloat32, DType::kFloat32, 400});
  RandomDecoder model = make(2);
  const auto tokens = random_tokens(300, model.spec.vocab_size, 5);
  const auto expected = logits_of(expected_model, window, tokens, 400);
  const auto logits = logits_of(model, window, tokens, 400);
  float largest = 0, error = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::abs(expected[i] - logits[i]));
    ASSERT_FALSE(std::isnan(logits[i]));
  }
  EXPECT_LT(error, 1e-5f * largest);
}

INSTANTIATE_TEST_SUITE_P(Tables, DecoderOnTable, testing::ValuesIn(tested_tables()), name_of_table);

TEST(WeightStore, NamesAWeightThatIsMissingOrHasAnotherShape) {
  WeightStore store(small_spec());
  store.declare("embedding", Storage::kF32, 53, 41);
  store.allocate();
  try {
    store.finish();
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_STREQ(error.what(),
                 "load: weight \"embedding\" must have shape [53, 42], but has [53, 41].");
  }
}

// The digest of a matrix and a vector of this storage, with one bit of their bytes flipped.
std::string digest_with(Storage storage, int64_t flipped_bit) {
  WeightStore store(small_spec());
  const int64_t rows = 3, cols = whole_blocks(storage, 32), row = row_bytes_of(storage, cols);
  std::vector<std::byte> bytes(rows * row + 5 * 4);
  std::mt19937 random(3);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0x9f);  // finite scales
  if (flipped_bit >= 0) bytes[flipped_bit / 8] ^= std::byte{1} << flipped_bit % 8;
  store.declare("q", storage, rows, cols);
  store.declare("q_bias", Storage::kF32, 5, 1);
  store.allocate();
  store.write("q", bytes.data(), rows * row, 0, rows);
  store.write("q_bias", bytes.data() + rows * row, 5 * 4, 0, 5);
  return store.digest();
}

TEST(WeightStore, HasAnotherDigestForEverySingleBit) {
  for (const Storage storage : kStorages) {
    const std::string digest = digest_with(storage, -1);
    ASSERT_EQ(digest.size(), 32u);
    ASSERT_EQ(digest, digest_with(storage, -1));
    std::set<std::string> seen{digest};
    const int64_t row = row_bytes_of(storage, whole_blocks(storage, 32));
    const int64_t bits = (3 * row + 5 * 4) * 8;
    for (int64_t bit = 0; bit < bits; ++bit) {
      const bool is_unused = storage == Storage::kInt4 && bit < 3 * row * 8 &&
                             bit % (20 * 8) >= 5 && bit % (20 * 8) < 13;  // of 13 for a zero point
      if (is_unused) continue;
      ASSERT_TRUE(seen.insert(digest_with(storage, bit)).second) << bit;
    }
  }
}

TEST(WeightStore, RefusesAScaleThatIsNotFinite) {
  WeightStore store(small_spec());
  store.declare("q", Storage::kQ8_0, 2, 32);
  store.allocate();
  std::vector<std::byte> rows(2 * row_bytes_of(Storage::kQ8_0, 32));
  const f16 infinite = to_f16(INFINITY);
  std::memcpy(rows.data() + rows.size() / 2, &infinite, 2);
  try {
    store.write("q", rows.data(), static_cast<int64_t>(rows.size()), 0, 2);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_STREQ(error.what(),
                 "load: weight \"q\" must have finite scales, but rows [0, 2) have a value that "
                 "is NaN or infinite.");
  }
}

std::string digest_of(const DecoderSpec& spec, const char* name, int64_t rows, int64_t cols) {
  WeightStore store(spec);
  store.declare(name, Storage::kF32, rows, cols);
  store.allocate();
  return store.digest();  // zeros
}

// Recorded before the fields of a spec were listed: sessions that were saved then must still open.
TEST(WeightStore, HasTheDigestsOfEarlierVersions) {
  const std::map<std::string, std::string> recorded = {
      {"plain", "d895bc24a43857630ee8bf554614c68c"},
      {"windows", "a621e47af82d812d5b3eac65ba141cd9"},
      {"norms before and after, soft-caps, windows", "51909a6a2f5a121626a2c2ce95d2f7fc"},
      {"a rope for windows and another for the rest", "a76139b084c3ba421b881354f829cf2c"},
      {"norms only after, over all heads", "d7e77c1b9d5d079c40cdbe9940c016a1"},
      {"parallel with two layer norms, ungated, biases", "0482ae69b4ed4535446f3f5f79e8449f"},
      {"parallel with one norm, no rotation without a window", "bd1a80fc0a23d85a153fa1ca0ec5b7fe"},
      {"ALiBi, clipped, layer norms over all heads", "cf3147d2b8dcf5546f88cd9ef79932af"},
      {"scaled residual stream", "72e10622cc28b1ef647ac0923988edaa"},
      {"query temperature", "751d666ce3963a64cf2ecb5200e219ae"},
      {"relu², ungated, layer norm of each head", "beb5b6d41079fde6bdc032ad7c42e3ed"},
  };
  std::vector<NamedSpec> specs = special_specs();
  specs.push_back({"plain", small_spec()});
  specs.push_back({"windows", alternating_spec(true)});
  size_t found = 0;
  for (const auto& [name, spec] : specs) {
    const auto earlier = recorded.find(name);
    if (earlier == recorded.end()) continue;  // a later kind of block
    ++found;
    EXPECT_EQ(digest_of(spec, "q", 4, 6), earlier->second) << name;
  }
  EXPECT_EQ(found, recorded.size());
}

TEST(WeightStore, HasAnotherDigestForAnotherSpecNameOrShape) {
  std::set<std::string> seen{digest_of(small_spec(), "q", 4, 6), digest_of(small_spec(), "k", 4, 6),
                             digest_of(small_spec(), "q", 4, 5),
                             digest_of(small_spec(), "q", 5, 6)};
  EXPECT_EQ(seen.size(), 4u);
  const std::vector<std::function<void(DecoderSpec*)>> changes = {
      [](DecoderSpec* spec) { ++spec->vocab_size; },
      [](DecoderSpec* spec) { ++spec->hidden_size; },
      [](DecoderSpec* spec) { ++spec->blocks[0].dense().intermediate_size; },
      [](DecoderSpec* spec) { spec->block_of_layer.push_back(0); },
      [](DecoderSpec* spec) { ++spec->blocks[0].attention().heads; },
      [](DecoderSpec* spec) { ++spec->blocks[0].attention().kv_heads; },
      [](DecoderSpec* spec) { ++spec->blocks[0].attention().head_dim; },
      [](DecoderSpec* spec) { spec->final_norm.eps *= 2; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().rope.inverse_frequencies.pop_back(); },
      [](DecoderSpec* spec) {
        spec->blocks[0].attention().rope.inverse_frequencies[3] *= 1 + 0x1p-52;
      },
      [](DecoderSpec* spec) { spec->blocks[0].attention().rope.pairing = Pairing::kInterleaved; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().rope.attention_factor = 1.25; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().qkv_bias = false; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().output_bias = true; },
      [](DecoderSpec* spec) { spec->blocks[0].dense().bias = true; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().qk_norm = QkNorm::kNone; },
      [](DecoderSpec* spec) { spec->tie_embeddings = !spec->tie_embeddings; },
      [](DecoderSpec* spec) { *spec = with_windows(*spec, {32, 0}); },
      [](DecoderSpec* spec) { *spec = with_windows(*spec, {0, 32}); },
      [](DecoderSpec* spec) { spec->blocks[0].attention().scale *= 2; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().soft_cap = 30; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().slopes = {1, 2, 3}; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().qk_norm = QkNorm::kFull; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().qk_norm = QkNorm::kRotatedHead; },
      [](DecoderSpec* spec) { spec->blocks[0].dense().xielu = {1, 2, 3, 4}; },
      [](DecoderSpec* spec) { spec->logit_bias = true; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().clip = 6; },
      [](DecoderSpec* spec) { spec->blocks[0].attention().temperature = 0.1f; },
      [](DecoderSpec* spec) {
        spec->blocks[0].attention().temperature = 0.1f;
        spec->blocks[0].attention().temperature_length = 2;
      },
      [](DecoderSpec* spec) { spec->blocks[0].dense().activation = Activation::kGelu; },
      [](DecoderSpec* spec) { spec->blocks[0].dense().gated = false; },
      [](DecoderSpec* spec) { spec->blocks[0].norm.eps *= 2; },
      [](DecoderSpec* spec) { spec->blocks[0].norm.kind = NormKind::kLayer; },
      [](DecoderSpec* spec) { spec->blocks[0].norm.bias = true; },
      [](DecoderSpec* spec) { spec->blocks[0].attention_norm = false; },
      [](DecoderSpec* spec) { spec->blocks[0].mlp_norm = false; },
      [](DecoderSpec* spec) { spec->blocks[0].attention_post_norm = true; },
      [](DecoderSpec* spec) { spec->blocks[0].mlp_post_norm = true; },
      [](DecoderSpec* spec) { spec->blocks[0].parallel = true; },
      [](DecoderSpec* spec) { spec->blocks[0].residual_scale = 0.5f; },
      [](DecoderSpec* spec) { spec->final_norm.kind = NormKind::kLayer; },
      [](DecoderSpec* spec) { spec->embedding_scale = 2; },
      [](DecoderSpec* spec) { spec->logit_scale = 2; },
      [](DecoderSpec* spec) { spec->logit_soft_cap = 2; },
      [](DecoderSpec* spec) {
        *spec = with_windows(*spec, {0, 32});
        spec->blocks[1].attention().rope = {};
      },
      [](DecoderSpec* spec) {
        *spec = with_windows(*spec, {0, 32});
        spec->blocks[1].attention().heads = 6;
      },
      [](DecoderSpec* spec) {
        *spec = with_windows(*spec, {0, 32});
        spec->blocks[0].attention().heads = 6;
      },
      [](DecoderSpec* spec) {
        *spec = with_windows(*spec, {0, 32});
        spec->blocks[1].attention().kv_heads = 3;
      },
      [](DecoderSpec* spec) {
        *spec = with_windows(*spec, {0, 32});
        spec->blocks[1].attention().head_dim = 28;
      },
      [](DecoderSpec* spec) { *spec = convolution_spec(3, 7); },
      [](DecoderSpec* spec) { *spec = convolution_spec(4, 7); },
      [](DecoderSpec* spec) {
        *spec = convolution_spec(3, 7);
        spec->block_of_layer = {0, 1, 2};
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    DecoderSpec spec = small_spec();
    changes[i](&spec);
    EXPECT_TRUE(seen.insert(digest_of(spec, "q", 4, 6)).second) << i;
  }
}

TEST(WeightStore, RefusesTooManyOrTooFewBytes) {
  WeightStore store(small_spec());
  store.declare("embedding", Storage::kF32, 53, 42);
  store.allocate();
  const std::vector<std::byte> bytes(54 * 42 * 4);
  EXPECT_THROW(store.write("embedding", bytes.data(), 54 * 42 * 4, 0, 54), CheckpointError);
  EXPECT_THROW(store.write("embedding", bytes.data(), 16 * 42 * 4 - 1, 0, 16), CheckpointError);
  store.write("embedding", bytes.data(), 16 * 42 * 4, 0, 16);
  EXPECT_THROW(store.write("embedding", bytes.data(), 38 * 42 * 4, 16, 38), CheckpointError);
}

}  // namespace
}  // namespace sinkstream
