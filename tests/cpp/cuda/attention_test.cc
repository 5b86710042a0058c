#include "kernels/cuda/attention/attention.h"

#include <array>
#include <memory>
#include <set>

#include "cuda/attention_call.h"
#include "cuda_emulator/block.h"
#include "cuda_emulator/orders.h"
#include "lanes.h"

namespace sinkstream::cuda {
namespace {

using emulator::in_orders_of_run;

// Tighter than the table's bfloat16, which covers chains of roundings. The output is bfloat16, off
// by up to 4e-3, and so are the weights unless they are float16.
double gpu_tolerance(DType type) {
  return tolerance_of(DType::kBFloat16) / (type == DType::kFloat16 ? 8 : 3);
}

// The reference writes the tokens, so that only attention is tested.
TestStream make_stream(const StreamSpec& spec) { return TestStream(spec, reference_kernels()); }

// Compares every `step`-th row with the reference on the same numbers.
void expect_reference(const AttentionCall& call, const Bits& bits, const std::string& what,
                      DType type, int64_t step) {
  const std::vector<float> out = floats_of(bits);
  for (int64_t row = 0; row < call.rows(); row += step) {
    if (call.is_idle(row)) continue;
    const std::vector<float> expected = call.expected(row);
    const double error = worst_error(out.data() + row * call.row_size(), expected.data(),
                                     call.row_size(), largest_of(expected));
    EXPECT_LE(error, gpu_tolerance(type)) << what << " row " << row;
  }
}

// Calls attention for consecutive tokens in all three ways, which must give the same bits and match
// the reference.
Bits expect_one_result(const Piece& piece, ThreadPool* pool, int64_t step = 1) {
  AttentionCall call({piece}, pool);
  const std::string what = cat(text_of(piece.stream->spec()), " from ", piece.index);
  const Bits out = call.decode();
  EXPECT_EQ(call.prefill(static_cast<int32_t>(piece.count)), out) << what;
  EXPECT_EQ(call.prefill(1), out) << what;
  expect_reference(call, out, what, piece.stream->spec().shape.type, step);
  return out;
}

// Feeds a stream one token, a few, and as many as fit, in rotation; checks one round in five.
void expect_one_result_until(int64_t end, const StreamSpec& spec, ThreadPool* pool) {
  TestStream stream = make_stream(spec);
  for (int64_t t = 0, turn = 0, count; t < end; t += count, ++turn) {
    constexpr int64_t kCuts[] = {1, 5, 64};
    count = spec.window.piece(t, std::min(kCuts[turn % 3], end - t));
    stream.append(t, count, pool);
    if (turn / 3 % 5 == 0) expect_one_result({&stream, t, count}, pool, 3);
  }
}

class CudaAttentionOfType : public testing::TestWithParam<DType> {};

TEST_P(CudaAttentionOfType, MatchesTheReferenceForTenWindowsInAnyPieces) {
  constexpr int64_t kSinksAndWindow[][2] = {{0, 1},  {0, 64},  {1, 1},    {4, 60}, {4, 64},
                                            {3, 65}, {70, 66}, {64, 128}, {130, 7}};
  ThreadPool pool(2);
  const DType type = GetParam();
  auto index = static_cast<int64_t>(type);
  for (const auto& [sinks, window] : kSinksAndWindow) {
    if (!runs_case(2, {index++})) continue;
    expect_one_result_until(sinks + 10 * window + 5, make_spec(sinks, window, 3, 1, 32, type),
                            &pool);
  }
}

TEST_P(CudaAttentionOfType, MatchesTheReferenceForEveryShape) {
  constexpr int64_t kHeads[][2] = {{1, 1}, {4, 2}, {9, 3}, {8, 2}, {7, 1}, {8, 1}, {71, 1}};
  constexpr int64_t kHeadDims[] = {32, 48, 64, 80, 96, 128, 144, 256, 272, 400, 512};
  ThreadPool pool(2);
  const DType type = GetParam();
  auto index = static_cast<int64_t>(type);
  for (const auto& [heads, kv_heads] : kHeads) {
    for (const int64_t head_dim : kHeadDims) {
      if (heads != 4 && head_dim != 64) continue;
      if (!runs_case(2, {index++})) continue;
      const StreamSpec spec = make_spec(5, 70, heads, kv_heads, head_dim, type);
      TestStream stream = make_stream(spec);
      feed(&stream, 0, 150, &pool);
      int64_t t = 150;
      for (const int64_t count : {1, heads == 71 ? 2 : 9}) {
        stream.append(t, count, &pool);
        expect_one_result({&stream, t, count}, &pool, 5);
        t += count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaAttentionOfType, testing::ValuesIn(kGpuTypes),
                         [](const auto& type) { return name_of(type.param); });

TEST(CudaAttention, GivesTheSameBitsInEveryOrderOfThreads) {
  ThreadPool pool(1);
  for (const DType type : kGpuTypes) {
    TestStream stream = make_stream(make_spec(4, 70, 34, 2, 48, type));
    feed(&stream, 0, 140, &pool);
    stream.append(140, 4, &pool);
    std::set<Bits> found;
    in_orders_of_run([&](const emulator::Order&) {
      found.insert(expect_one_result({&stream, 140, 4}, &pool, 3));
    });
    EXPECT_EQ(found.size(), 1u);
  }
}

TEST(CudaAttention, FoldsMorePagesThanAWarpHasLanes) {
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    StreamSpec spec = make_spec(4, 64 * 70, 2, 1, 80, type);
    spec.sink_logits = {1, -2};
    spec.slopes = {0.02f, -0.01f};  // the largest score rises, or falls, from page to page
    TestStream stream = make_stream(spec);
    int64_t t = 0;
    for (const int64_t next : {64 * 31 + 3, 64 * 32 + 3, 5000}) {  // 32 pages, 33, and 71
      feed(&stream, t, next, &pool);
      t = next;
      expect_one_result({&stream, t - 1, 1}, &pool);
    }
  }
}

TEST(CudaAttention, GivesTheSameBitsInAnyCompany) {
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    std::vector<std::unique_ptr<TestStream>> streams;
    std::vector<Piece> pieces;
    for (const auto& [sinks, window, length] :
         {std::array<int64_t, 3>{4, 70, 200}, {0, 64, 64}, {66, 3, 40}, {2, 130, 1}}) {
      StreamSpec spec = make_spec(sinks, window, 6, 2, 48, type);
      spec.seed = 10 + sinks;
      streams.push_back(std::make_unique<TestStream>(spec, reference_kernels()));
      feed(streams.back().get(), 0, length, &pool);
      streams.back()->append(length, 1, &pool);
      pieces.push_back({streams.back().get(), length, 1});
    }
    for (const int idle : {0, 2}) {
      AttentionCall together(pieces, &pool, idle);
      const Bits out = together.decode();
      EXPECT_EQ(together.prefill(1), out);
      const int64_t size = together.row_size();
      for (size_t i = 0; i < pieces.size(); ++i) {
        const auto row = out.begin() + static_cast<int64_t>(i) * (1 + idle) * size;
        EXPECT_EQ(Bits(row, row + size), expect_one_result(pieces[i], &pool));
        EXPECT_EQ(Bits(row + size, row + (1 + idle) * size), Bits(idle * size, 0xFFFF));
      }
    }
  }
}

// Rows of 1 to 40 pages, more rows than a warp has lanes.
TEST(CudaAttention, GivesTheSameBitsHoweverManyBlocksRunTogether) {
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    std::vector<std::unique_ptr<TestStream>> streams;
    std::vector<Piece> pieces;
    for (int64_t i = 0; i < (emulator::kFindsRaces ? 34 : 70); ++i) {
      const int64_t window = i == 20 ? 2500 : 1 + 7 * i, length = i == 50 ? 1 : 3 * window + 40;
      StreamSpec spec = make_spec(i % 5, window, 2, 1, 32, type);
      spec.seed = 10 + i;
      streams.push_back(std::make_unique<TestStream>(spec, reference_kernels()));
      feed(streams.back().get(), 0, length, &pool);
      streams.back()->append(length, 1, &pool);
      pieces.push_back({streams.back().get(), length, 1});
    }
    AttentionCall together(pieces, &pool, 1);
    const Bits expected = together.prefill(1);
    for (const int64_t blocks : {1, 3, 1000}) {
      const emulator::BlocksTogether limit(blocks);
      EXPECT_EQ(together.decode(), expected) << blocks;
    }
  }
}

TEST(CudaAttention, WalksWhereABlockHasTooLittleSharedMemory) {
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    TestStream stream = make_stream(make_spec(4, 70, 40, 1, 256, type));
    feed(&stream, 0, 150, &pool);
    stream.append(150, 1, &pool);
    const Bits expected = expect_one_result({&stream, 150, 1}, &pool);
    const emulator::SharedLimit limit(99 * 1024);  // as compute capability 8.6
    AttentionCall call({{&stream, 150, 1}}, &pool);
    EXPECT_EQ(call.decode(), expected);
  }
}

TEST(CudaAttention, DoesNotWriteIdleRowsAfterAPiece) {
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    TestStream stream = make_stream(make_spec(4, 90, 6, 2, 32, type));
    feed(&stream, 0, 110, &pool);
    const Bits alone = expect_one_result({&stream, 100, 10}, &pool);
    for (const int idle : {1, 40}) {
      AttentionCall call({{&stream, 100, 10}}, &pool, idle);
      const Bits out = call.prefill(10 + idle);
      EXPECT_EQ(Bits(out.begin(), out.begin() + alone.size()), alone);
      EXPECT_EQ(Bits(out.begin() + alone.size(), out.end()), Bits(idle * call.row_size(), 0xFFFF));
    }
  }
}

TEST(CudaAttention, FindsBlocksInScratchPages) {
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    TestStream stream = make_stream(make_spec(70, 150, 3, 1, 48, type));
    feed(&stream, 0, 70 + 256, &pool);
    stream.append(70 + 256, 20, &pool);  // of block 4
    const Piece piece = {&stream, 70 + 256, 20};
    const Bits expected = AttentionCall({piece}, &pool).prefill(20);
    for (const int64_t block : {4, 2}) {
      AttentionCall call({piece}, &pool);
      call.move_to_scratch(block, 5);
      EXPECT_EQ(call.decode(), expected) << name_of(type) << " from block " << block;
      EXPECT_EQ(call.prefill(20), expected) << name_of(type) << " from block " << block;
    }
  }
}

// A weight of zero times a NaN value would be NaN.
TEST(CudaAttention, PassesANanOnlyToQueriesThatSeeIt) {
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    const StreamSpec spec = make_spec(4, 40, 3, 1, 48, type);
    const auto read = [&](bool poisoned) {
      TestStream stream = make_stream(spec);
      feed(&stream, 0, 68, &pool);
      stream.append(68, 60, &pool);
      if (poisoned) stream.poison(80);
      AttentionCall call({{&stream, 68, 60}}, &pool);
      const Bits out = call.prefill(60);
      EXPECT_EQ(call.decode(), out);
      return floats_of(out);
    };
    const auto clean = read(false), mixed = read(true);
    for (int64_t t = 68; t < 68 + 60; ++t) {
      for (int64_t i = (t - 68) * 3 * 48; i < (t - 67) * 3 * 48; ++i) {
        if (t >= 80 && t < 80 + 40) {
          EXPECT_TRUE(std::isnan(mixed[i])) << name_of(type) << " token " << t;
        } else {
          EXPECT_EQ(mixed[i], clean[i]) << name_of(type) << " token " << t;
        }
      }
    }
  }
}

TEST(CudaAttention, AveragesWhatScoresTheSame) {
  ThreadPool pool(1);
  for (const DType type : kGpuTypes) {
    StreamSpec spec = make_spec(4, 100, 2, 1, 32, type);
    spec.scale = 0;
    TestStream stream = make_stream(spec);
    feed(&stream, 0, 300, &pool);
    expect_one_result({&stream, 299, 1}, &pool);
  }
}

TEST(CudaAttention, MatchesTheReferenceForScoresHundredsApart) {
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    for (const float scale : {-3.0f, 20.0f, 300.0f}) {
      StreamSpec spec = make_spec(4, 100, 3, 1, 32, type);
      spec.scale = scale;
      TestStream stream = make_stream(spec);
      feed(&stream, 0, 260, &pool);
      expect_one_result({&stream, 250, 10}, &pool);
    }
  }
}

// Specs with special scores: Note [Scores] of kernels/attention.h. Specs 7 and 8 have all features,
// 8 for more heads than half a tile holds.
std::vector<StreamSpec> special_specs(int64_t sinks, int64_t window, DType type) {
  std::vector<StreamSpec> specs(8, make_spec(sinks, window, 3, 1, 32, type));
  specs[0].slopes = {0.25f, 0.0625f, 1};
  specs[0].rotary_dim = 0;  // as in such models
  specs[1].soft_cap = 1.5f;
  specs[2].sink_logits = {0.5f, -3, 4};
  specs[3].sink_logits = {90, 20, -90};
  specs[4].soft_cap = 50;
  specs[4].scale = 100;
  specs[5].soft_cap = 1e-3f;
  specs[6].slopes = {1, 0.7f, 1e-4f};
  specs[7].slopes = {0.25f, -0.01f, 0};
  specs[7].soft_cap = 30;
  specs[7].sink_logits = {0, 2, -INFINITY};
  specs[7].pairing = Pairing::kInterleaved;
  specs[7].rotary_dim = 6;
  specs.push_back(make_spec(sinks, window, 12, 1, 32, type));
  for (int head = 0; head < 12; ++head) {
    specs[8].slopes.push_back(0.3f / static_cast<float>(1 + head));
    specs[8].sink_logits.push_back(static_cast<float>(head - 6));
  }
  specs[8].soft_cap = 20;
  return specs;
}

TEST(CudaAttention, BendsScoresAsTheReference) {
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    for (const auto& [sinks, window] : {std::pair{4, 60}, {1, 1}, {66, 130}}) {
      for (const StreamSpec& spec : special_specs(sinks, window, type)) {
        TestStream stream = make_stream(spec);
        feed(&stream, 0, sinks + window + 70, &pool);
        const int64_t t = sinks + window + 70;
        const int64_t count = spec.window.piece(t, 7);
        stream.append(t, count, &pool);
        expect_one_result({&stream, t, count}, &pool, 2);
      }
    }
  }
}

TEST(CudaAttention, TakesALogitOfMinusInfinityForNone) {
  ThreadPool pool(1);
  for (const DType type : kGpuTypes) {
    const StreamSpec plain = make_spec(4, 40, 3, 1, 32, type);
    StreamSpec neutral = plain;
    neutral.sink_logits = {-INFINITY, -INFINITY, -INFINITY};
    Bits found[2];
    for (const bool is_plain : {false, true}) {
      TestStream stream = make_stream(is_plain ? plain : neutral);
      feed(&stream, 0, 90, &pool);
      found[is_plain] = expect_one_result({&stream, 80, 10}, &pool);
    }
    EXPECT_EQ(found[0], found[1]);
  }
}

// Kernels with and without soft-caps and ALiBi have the same bits where neither changes a score.
TEST(CudaAttention, TakesASlopeOfZeroForNone) {
  ThreadPool pool(1);
  for (const DType type : kGpuTypes) {
    for (const int64_t heads : {3, 12}) {
      for (const int64_t head_dim : {32, 144}) {
        const StreamSpec plain = make_spec(4, 70, heads, 1, head_dim, type);
        StreamSpec neutral = plain;
        neutral.slopes.assign(heads, 0);
        Bits found[2];
        for (const bool is_plain : {false, true}) {
          TestStream stream = make_stream(is_plain ? plain : neutral);
          feed(&stream, 0, 140, &pool);
          stream.append(140, 3, &pool);
          found[is_plain] = expect_one_result({&stream, 140, 3}, &pool, 2);
        }
        EXPECT_EQ(found[0], found[1]) << text_of(plain);
      }
    }
  }
}

TEST(CudaAttention, IsAsExactAtIndexTenMillion) {
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    for (const int64_t start : {int64_t{10'000'000}, int64_t{1'000'000'000'000}}) {
      std::vector<StreamSpec> specs = special_specs(4, 90, type);
      if (start > 10'000'000) specs.erase(specs.begin(), specs.end() - 1);
      for (StreamSpec& spec : specs) {
        spec.window.begin = start;  // tokens between the sinks and `start` were removed
        TestStream stream = make_stream(spec);
        stream.append(0, 4, &pool);
        feed(&stream, start, start + 150, &pool);
        const int64_t t = start + 150;
        const int64_t count = spec.window.piece(t, 6);
        stream.append(t, count, &pool);
        const std::vector<float> out = floats_of(expect_one_result({&stream, t, count}, &pool, 5));
        if (start > 10'000'000) continue;  // the definition's own angles are not exact there
        const std::vector<double> literal = literal_row(spec, t);
        const std::vector<float> expected(literal.begin(), literal.end());
        EXPECT_LE(worst_error(out.data(), expected.data(), 3 * 32, largest_of(expected)),
                  tolerance_of(type))
            << text_of(spec);
      }
    }
  }
}

TEST(CudaAttention, SaysThatALaunchFailed) {
  const AttentionArgs args = {.row_count = 1,
                              .heads = 1,
                              .pages = {.shape = {1, 32, DType::kInt8}},
                              .span_rows = 1,
                              .page_capacity = 1};
  emulator::fail_next_launch(7);
  EXPECT_EQ(attention_decode(args, Stream{}), 7);
  emulator::fail_next_launch(8);
  EXPECT_EQ(attention_prefill(args, Stream{}), 8);
}

}  // namespace
}  // namespace sinkstream::cuda
