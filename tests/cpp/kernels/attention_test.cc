#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "kernels/attention_fixture.h"
#include "lanes.h"

namespace sinkstream {
namespace {

TEST_P(AttentionTest, MatchesTheReferenceForTenWindows) {
  constexpr int64_t kSinksAndWindow[][2] = {{0, 1},  {0, 64},  {1, 1},    {4, 60}, {4, 64},
                                            {3, 65}, {70, 66}, {64, 128}, {130, 7}};
  ThreadPool pool(2);
  for (const DType type : kTypes) {
    auto index = static_cast<int64_t>(type);
    for (const auto& [sinks, window] : kSinksAndWindow) {
      if (!runs_case(2, {index++})) continue;
      expect_reference_until(sinks + 10 * window + 5, make_spec(sinks, window, 3, 1, 16, type),
                             &pool);
    }
  }
}

TEST_P(AttentionTest, MatchesTheReferenceForEveryShape) {
  constexpr std::pair<int64_t, int64_t> kHeads[] = {{1, 1}, {3, 3},  {4, 2}, {9, 3},
                                                    {8, 1}, {10, 2}, {71, 1}};
  constexpr int64_t kHeadDims[] = {2, 6, 16, 18, 32, 64, 80, 96, 128, 256, 320, 512};
  ThreadPool pool(2);
  for (const auto& [t, type] : indexed(kTypes)) {
    for (const auto& [s, sizes] : indexed(kHeads)) {
      const auto [heads, kv_heads] = sizes;
      for (const auto& [i, head_dim] : indexed(kHeadDims)) {
        if (heads == 71 && head_dim != 64) continue;  // Falcon-7B
        if (heads != 71 && !runs_case(3, {t, s, i})) continue;
        const StreamSpec spec = make_spec(5, 70, heads, kv_heads, head_dim, type);
        TestStream stream(spec, table());
        int64_t begin = 0;
        while (begin < 150) {
          const int64_t count = spec.window.piece(begin, 150 - begin);
          stream.append(begin, count, &pool);
          begin += count;
        }
        for (const int64_t count : {1, 21}) {
          stream.append(begin, count, &pool);
          AttentionCall call({{&stream, begin, count}}, &pool);
          expect_reference(call, call.run(table().attention), 5,
                           cat(text_of(spec), " from ", begin));
          begin += count;
        }
      }
    }
  }
}

TEST_P(AttentionTest, EqualsRotatingEveryLiveKeyToItsPlace) {
  struct Scheme {
    int64_t rotary_dim;
    Pairing pairing;
    double attention_factor;
  };
  constexpr Scheme kSchemes[] = {{16, Pairing::kHalf, 1},
                                 {16, Pairing::kInterleaved, 1},
                                 {6, Pairing::kHalf, 1},
                                 {6, Pairing::kInterleaved, 1.2},
                                 {0, Pairing::kHalf, 1}};
  ThreadPool pool(2);
  for (const DType type : kTypes) {
    for (const Scheme& scheme : kSchemes) {
      for (const auto& [sinks, window] : {std::pair{4, 27}, {0, 70}, {67, 30}}) {
        StreamSpec spec = make_spec(sinks, window, 2, 1, 16, type);
        spec.rotary_dim = scheme.rotary_dim;
        spec.pairing = scheme.pairing;
        spec.attention_factor = scheme.attention_factor;
        TestStream stream(spec, table());
        const int64_t end = sinks + 10 * window;
        const auto out = read_all(&stream, table(), &pool, 0, end, 64);
        for (int64_t t = 0; t < end; t += t < sinks + window + 3 ? 1 : 7) {
          expect_literal(spec, t, out.data() + t * 2 * 16);
        }
      }
    }
  }
}

TEST_P(AttentionTest, IsAsExactAtIndexTenMillion) {
  ThreadPool pool(2);
  for (const DType type : kTypes) {
    for (const int64_t start : {int64_t{10'000'000}, int64_t{1'000'000'000}}) {
      StreamSpec spec = make_spec(4, 90, 3, 1, 32, type);
      spec.window.begin = start;  // what was between the sinks and `start` was evicted
      TestStream stream(spec, table());
      stream.append(0, 4, &pool);
      const auto out = read_all(&stream, table(), &pool, start, start + 200, 64);
      for (int64_t t = start; t < start + 200; t += 9) {
        expect_literal(spec, t, out.data() + (t - start) * 3 * 32);
      }
    }
  }
}

TEST_P(AttentionTest, GivesTheSameBitsHoweverTokensAreCut) {  // tsan
  for (const auto& [t, type] : indexed(kTypes)) {
    for (const auto& [s, sizes] : indexed({std::pair{3, 1}, {2, 2}, {30, 1}})) {
      const auto [heads, kv_heads] = sizes;
      const StreamSpec spec = make_spec(6, 75, heads, kv_heads, 18, type);
      const int64_t end = 190;
      ThreadPool one(1);
      TestStream stream(spec, table());
      const auto one_by_one = read_all(&stream, table(), &one, 0, end, 1);
      // The work is split differently above kSplitRows.
      for (const auto& [i, work] :
           indexed({std::pair{1, 2}, {1, 64}, {2, 1}, {2, 7}, {2, 16}, {2, 17}, {3, 5}, {3, 64}})) {
        if (!runs_case(3, {t, s, i})) continue;
        const auto [threads, cut] = work;
        ThreadPool pool(threads);
        TestStream again(spec, table());
        const auto out = read_all(&again, table(), &pool, 0, end, cut);
        EXPECT_TRUE(same_bits(out.data(), one_by_one.data(), end * heads * 18))
            << text_of(spec) << " in pieces of " << cut << " on " << threads << " threads";
      }
    }
  }
}

TEST_P(AttentionTest, GivesTheSameBitsWhereTheScratchHasNoRoomForAllPages) {  // tsan
  ThreadPool pool(2);
  for (const DType type : kTypes) {
    TestStream stream(make_spec(70, 300, 6, 2, 20, type), table());
    read_all(&stream, table(), &pool, 0, 600, 64);
    AttentionCall call({{&stream, 595, 5}}, &pool);
    const auto split = call.run(table().attention);
    call.set_scratch_pages(1);
    const auto whole = call.run(table().attention);
    EXPECT_TRUE(same_bits(split.data(), whole.data(), static_cast<int64_t>(split.size())));
  }
}

TEST_P(AttentionTest, GivesTheSameBitsInAnyBatch) {
  for (const DType type : kTypes) {
    for (const int64_t longest : {1, 5, 30}) {  // 5 rows or fewer, and more than kSplitRows
      std::vector<std::unique_ptr<TestStream>> streams;
      std::vector<Piece> pieces;
      ThreadPool pool(2);
      for (const auto& [sinks, window, length] :
           {std::array<int64_t, 3>{4, 70, 200}, {0, 64, 64}, {66, 3, 40}, {2, 130, 1}}) {
        StreamSpec spec = make_spec(sinks, window, 6, 2, 20, type);
        spec.seed = 10 + sinks;
        streams.push_back(std::make_unique<TestStream>(spec, table()));
        read_all(streams.back().get(), table(), &pool, 0, length, 64);
        const int64_t count = spec.window.piece(length, longest);
        streams.back()->append(length, count, &pool);
        pieces.push_back({streams.back().get(), length, count});
      }
      const auto together = AttentionCall(pieces, &pool).run(table().attention);
      int64_t row = 0;
      for (const Piece& piece : pieces) {
        ThreadPool one(1);
        const auto alone = AttentionCall({piece}, &one).run(table().attention);
        EXPECT_TRUE(same_bits(together.data() + row * 6 * 20, alone.data(),
                              static_cast<int64_t>(alone.size())))
            << text_of(piece.stream->spec());
        row += piece.count;
      }
    }
  }
}

TEST_P(AttentionTest, ReadsEverySink) {
  ThreadPool pool(1);
  for (const DType type : kTypes) {
    const StreamSpec spec = make_spec(66, 64, 2, 1, 16, type);
    TestStream stream(spec, table());
    read_all(&stream, table(), &pool, 0, 400, 64);
    const auto before = AttentionCall({{&stream, 399, 1}}, &pool).run(table().attention);
    for (const int64_t sink : {0, 1, 63, 64, 65}) {
      const PageShape& shape = spec.shape;
      const Slot slot = stream.slot(sink);
      const std::vector<std::byte> kept(slot.page, slot.page + shape.bytes());
      std::vector<float> value = stored_row(slot, shape, Half::kValues, 0);
      value[7] += 1000;
      reference::write_row(slot.page, shape, Half::kValues, 0, slot.row, value.data());
      const auto after = AttentionCall({{&stream, 399, 1}}, &pool).run(table().attention);
      EXPECT_NE(before[7], after[7]) << name_of(type) << " sink " << sink;
      std::memcpy(slot.page, kept.data(), kept.size());
    }
  }
}

TEST_P(AttentionTest, PassesANanOnToTheTokensThatSeeItAndToNoOther) {
  ThreadPool pool(2);
  for (const DType type : kTypes) {
    const StreamSpec spec = make_spec(4, 40, 3, 1, 16, type);
    const auto read = [&](bool poisoned) {
      TestStream stream(spec, table());
      read_all(&stream, table(), &pool, 0, 68, 64);
      const int64_t count = spec.window.piece(68, 60);
      stream.append(68, count, &pool);
      if (poisoned) stream.poison(80);
      return AttentionCall({{&stream, 68, count}}, &pool).run(table().attention);
    };
    const auto clean = read(false), mixed = read(true);
    for (int64_t row = 0; row < 60; ++row) {
      const int64_t t = 68 + row;
      const float* out = mixed.data() + row * 3 * 16;
      if (t >= 80 && t < 80 + 40) {
        for (int64_t d = 0; d < 3 * 16; ++d) EXPECT_TRUE(std::isnan(out[d])) << "token " << t;
      } else {
        EXPECT_TRUE(same_bits(out, clean.data() + row * 3 * 16, 3 * 16)) << "token " << t;
      }
    }
  }
}

TEST_P(AttentionTest, AveragesWhatScoresTheSame) {
  ThreadPool pool(1);
  for (const DType type : kTypes) {
    StreamSpec spec = make_spec(4, 100, 2, 1, 16, type);
    spec.scale = 0;  // all scores are equal
    TestStream stream(spec, table());
    const auto out = read_all(&stream, table(), &pool, 0, 300, 64);
    expect_literal(spec, 299, out.data() + 299 * 2 * 16);
  }
}

TEST_P(AttentionTest, MatchesTheReferenceForScoresHundredsApart) {
  ThreadPool pool(2);
  for (const DType type : kTypes) {
    for (const float scale : {-3.0f, 20.0f, 300.0f}) {
      StreamSpec spec = make_spec(4, 100, 3, 1, 16, type);
      spec.scale = scale;
      TestStream stream(spec, table());
      read_all(&stream, table(), &pool, 0, 260, 64);
      AttentionCall call({{&stream, 250, 10}}, &pool);
      const auto out = call.run(table().attention);
      // Scores of a thousand are rounded to 6e-5, and so are the logarithms of weights.
      for (int64_t row = 0; row < call.rows(); ++row) {
        const std::vector<float> expected = call.expected(row);
        EXPECT_LE(worst_error(out.data() + row * call.row_size(), expected.data(), call.row_size(),
                              largest_of(expected)),
                  tolerance_of(DType::kFloat32) * std::max(1.0f, std::abs(scale)))
            << name_of(type) << " scale " << scale;
      }
    }
  }
}

SINKSTREAM_TEST_ALL_TABLES(AttentionTest);

TEST(AttentionReference, MeetsTheDefinitionToTheLastBits) {
  ThreadPool pool(2);
  for (const auto& [sinks, window] : {std::pair{4, 27}, {0, 64}, {67, 70}, {1, 1}}) {
    const StreamSpec spec = make_spec(sinks, window, 2, 1, 16, DType::kFloat32);
    TestStream stream(spec, reference_kernels());
    const int64_t end = sinks + 10 * window;
    const auto out = read_all(&stream, reference_kernels(), &pool, 0, end, 64);
    for (int64_t t = 0; t < end; ++t) {
      const std::vector<double> literal = literal_row(spec, t);
      const std::vector<float> expected(literal.begin(), literal.end());
      // Rotated queries and keys are rounded to float32: 1e-6 is a few units of that.
      EXPECT_LE(worst_error(out.data() + t * 2 * 16, expected.data(), 2 * 16, largest_of(expected)),
                1e-6)
          << text_of(spec) << " token " << t;
    }
  }
}

}  // namespace
}  // namespace sinkstream
