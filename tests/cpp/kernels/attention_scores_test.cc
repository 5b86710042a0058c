// Scores that are more than a scaled product: Note [Scores] of kernels/attention.h.
#include <array>

#include "kernels/attention_fixture.h"
#include "lanes.h"

namespace sinkstream {
namespace {

// ALiBi slopes for a power of two of heads; negative slopes and 0 are also valid.
std::vector<float> slopes_of(int64_t heads) {
  std::vector<float> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    slopes.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(heads)));
  }
  return slopes;
}

// Three queries of one key head, each spec with one special kind of score; the last with all.
std::vector<StreamSpec> special_specs(int64_t sinks, int64_t window, DType type) {
  const StreamSpec plain = make_spec(sinks, window, 3, 1, 16, type);
  std::vector<StreamSpec> specs(5, plain);
  specs[0].slopes = slopes_of(3);
  specs[0].rotary_dim = 0;  // as in models with ALiBi
  specs[1].soft_cap = 1.5f;
  specs[2].sink_logits = {0.5f, -3, 4};
  specs[3].sink_type = type == DType::kFloat32 ? DType::kInt8 : DType::kFloat32;
  specs[4].slopes = {0.25f, -0.01f, 0};
  specs[4].soft_cap = 30;
  specs[4].sink_logits = {0, 2, -INFINITY};
  specs[4].sink_type = type == DType::kFloat16 ? DType::kBFloat16 : DType::kFloat16;
  specs[4].pairing = Pairing::kInterleaved;
  specs[4].rotary_dim = 6;
  return specs;
}

class AttentionScoresTest : public AttentionTest {};

TEST_P(AttentionScoresTest, MatchTheReferenceOnEveryPageBorder) {
  ThreadPool pool(2);
  for (const auto& [t, type] : indexed(kTypes)) {
    for (const auto& [s, sizes] : indexed({std::pair{4, 60}, {0, 65}, {1, 1}, {66, 130}})) {
      const auto [sinks, window] = sizes;
      for (const auto& [i, spec] : indexed(special_specs(sinks, window, type))) {
        if (!runs_case(3, {t, s, i})) continue;
        expect_reference_until(sinks + 2 * window + 70, spec, &pool);
      }
    }
  }
}

TEST_P(AttentionScoresTest, MeetTheDefinitionForTenWindows) {
  ThreadPool pool(2);
  for (const auto& [t, type] : indexed(kTypes)) {
    for (const auto& [s, sizes] : indexed({std::pair{4, 27}, {0, 70}, {67, 30}})) {
      const auto [sinks, window] = sizes;
      for (const auto& [i, spec] : indexed(special_specs(sinks, window, type))) {
        if (!runs_case(3, {t, s, i})) continue;
        TestStream stream(spec, table());
        const int64_t end = sinks + 10 * window;
        const auto out = read_all(&stream, table(), &pool, 0, end, 64);
        for (int64_t token = 0; token < end; token += token < sinks + window + 3 ? 1 : 7) {
          expect_literal(spec, token, out.data() + token * 3 * 16);
        }
      }
    }
  }
}

TEST_P(AttentionScoresTest, AreAsExactAtIndexTenMillion) {
  ThreadPool pool(2);
  constexpr int64_t kStart = 10'000'000;
  for (const DType type : kTypes) {
    for (StreamSpec spec : special_specs(4, 90, type)) {
      spec.window.begin = kStart;
      TestStream stream(spec, table());
      stream.append(0, 4, &pool);
      const auto out = read_all(&stream, table(), &pool, kStart, kStart + 200, 64);
      for (int64_t t = kStart; t < kStart + 200; t += 9) {
        expect_literal(spec, t, out.data() + (t - kStart) * 3 * 16);
      }
    }
  }
}

TEST_P(AttentionScoresTest, HaveTheSameBitsHoweverTokensAreCut) {  // tsan
  for (const auto& [t, type] : indexed(kTypes)) {
    for (const auto& [s, spec] : indexed(special_specs(6, 75, type))) {
      ThreadPool one(1);
      TestStream stream(spec, table());
      const auto one_by_one = read_all(&stream, table(), &one, 0, 190, 1);
      for (const auto& [i, work] : indexed({std::pair{1, 64}, {2, 1}, {2, 16}, {2, 17}, {3, 5}})) {
        if (!runs_case(3, {t, s, i})) continue;
        const auto [threads, cut] = work;
        ThreadPool pool(threads);
        TestStream again(spec, table());
        const auto out = read_all(&again, table(), &pool, 0, 190, cut);
        EXPECT_TRUE(same_bits(out.data(), one_by_one.data(), 190 * 3 * 16))
            << text_of(spec) << " in pieces of " << cut << " on " << threads << " threads";
      }
    }
  }
}

// Long distances, scores far above the cap, and sink logits that outweigh every key.
TEST_P(AttentionScoresTest, MatchTheReferenceAtTheirExtremes) {
  ThreadPool pool(2);
  for (const DType type : kTypes) {
    std::vector<StreamSpec> specs(4, make_spec(4, 300, 3, 1, 16, type));
    specs[0].slopes = {1, 0.7f, 1e-4f};
    specs[1].soft_cap = 50;
    specs[1].scale = 100;
    specs[2].soft_cap = 1e-3f;
    specs[3].sink_logits = {90, 20, -90};
    for (const StreamSpec& spec : specs) {
      TestStream stream(spec, table());
      read_all(&stream, table(), &pool, 0, 400, 64);
      AttentionCall call({{&stream, 390, 10}}, &pool);
      expect_reference(call, call.run(table().attention), 1, text_of(spec));
    }
  }
}

TEST_P(AttentionScoresTest, AreThePlainOnesWithoutACapASlopeOrALogit) {
  ThreadPool pool(1);
  for (const DType type : kTypes) {
    const StreamSpec plain = make_spec(4, 40, 3, 1, 16, type);
    StreamSpec neutral = plain;
    neutral.sink_logits = {-INFINITY, -INFINITY, -INFINITY};
    TestStream stream(plain, table()), other(neutral, table());
    const auto expected = read_all(&stream, table(), &pool, 0, 200, 64);
    const auto found = read_all(&other, table(), &pool, 0, 200, 64);
    EXPECT_TRUE(same_bits(found.data(), expected.data(), 200 * 3 * 16));
  }
}

SINKSTREAM_TEST_ALL_TABLES(AttentionScoresTest);

}  // namespace
}  // namespace sinkstream
