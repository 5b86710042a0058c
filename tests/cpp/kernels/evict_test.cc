#include "kernels/evict.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention_fixture.h"

namespace sinkstream {
namespace {

class EvictTest : public TableTest<&Kernels::evict> {};

// Evicts the `distance` tokens that follow the oldest `older` ones of the window, from a stream of
// `length` tokens.
void cut(TestStream* stream, EvictOp* op, int64_t length, int64_t older, int64_t distance,
         ThreadPool* pool) {
  const int64_t first = stream->spec().window.first(length);
  std::vector<Slot> from, to;
  for (int64_t i = older - 1; i >= 0; --i) {
    from.push_back(stream->slot(first + i));
    to.push_back(stream->slot(first + i + distance));
  }
  const ShiftAngles shift(stream->spec(), distance);
  op({.from = from.data(),
      .to = to.data(),
      .rows = older,
      .shape = stream->spec().shape,
      .rotation = shift.rotation()},
     {pool});
}

// Writes the tokens [0, end) without attending to any.
void append_all(TestStream* stream, int64_t end, ThreadPool* pool) {
  for (int64_t t = 0, count; t < end; t += count) {
    count = stream->spec().window.piece(t, std::min<int64_t>(64, end - t));
    stream->append(t, count, pool);
  }
}

// Key or value of token i of key head h, as stored.
std::vector<float> stored(const TestStream& stream, int64_t i, Half half, int64_t h) {
  return stored_row(stream.slot(i), stream.spec().shape, half, h);
}

TEST_P(EvictTest, LeavesKeysAsIfTheyHadBeenWrittenThere) {
  ThreadPool pool(2);
  for (const DType type : kTypes) {
    for (const auto& [rotary_dim, pairing] :
         {std::pair{18, Pairing::kHalf}, {6, Pairing::kInterleaved}, {0, Pairing::kHalf}}) {
      for (const auto& [older, distance] : {std::pair{1, 1}, {90, 3}, {40, 64}, {5, 100}, {0, 9}}) {
        StreamSpec spec = make_spec(4, 130, 2, 2, 18, type);
        spec.rotary_dim = rotary_dim;
        spec.pairing = pairing;
        spec.base = 100;
        TestStream stream(spec, table());
        constexpr int64_t kLength = 700;
        read_all(&stream, table(), &pool, 0, kLength, 64);
        const int64_t first = spec.window.first(kLength);
        std::vector<std::vector<float>> values;
        for (int64_t i = 0; i < older; ++i)
          values.push_back(stored(stream, first + i, Half::kValues, 1));
        cut(&stream, table().evict, kLength, older, distance, &pool);

        for (int64_t i = 0; i < older; ++i) {
          EXPECT_EQ(stored(stream, first + i + distance, Half::kValues, 1), values[i]);
          // The token's own key, rotated to its new index in double.
          const std::vector<float> plain = random_part(spec, Part::kKey, first + i);
          std::vector<float> expected(plain.begin() + 18, plain.end());
          const auto frequencies = spec.frequencies();
          for (size_t d = 0; d < frequencies.size(); ++d) {
            const double angle = static_cast<double>(first + i + distance) * frequencies[d];
            const size_t a = pairing == Pairing::kHalf ? d : 2 * d;
            const size_t b = pairing == Pairing::kHalf ? d + frequencies.size() : 2 * d + 1;
            const double x = expected[a], y = expected[b];
            expected[a] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
            expected[b] = static_cast<float>(y * std::cos(angle) + x * std::sin(angle));
          }
          const auto found = stored(stream, first + i + distance, Half::kKeys, 1);
          EXPECT_LE(worst_error(found.data(), expected.data(), 18, largest_of(expected)),
                    tolerance_of(type) / 2)
              << text_of(spec) << " token " << first + i << " moved by " << distance;
        }
      }
    }
  }
}

TEST_P(EvictTest, MovesEveryRowAsTheReferenceOnAnyThread) {  // tsan
  for (const DType type : kTypes) {
    for (const auto& [head_dim, rotary_dim] : {std::pair{20, 12}, {320, 80}, {512, 512}}) {
      StreamSpec spec = make_spec(3, 200, 6, 3, head_dim, type);
      spec.rotary_dim = rotary_dim;
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        TestStream stream(spec, reference_kernels()), expected(spec, reference_kernels());
        append_all(&stream, 300, &pool);
        append_all(&expected, 300, &pool);
        cut(&stream, table().evict, 300, 150, 20, &pool);
        cut(&expected, reference_kernels().evict, 300, 150, 20, &pool);
        for (int64_t i = spec.window.first(300); i < 300; ++i) {
          for (int64_t h = 0; h < 3; ++h) {
            EXPECT_EQ(stored(stream, i, Half::kValues, h), stored(expected, i, Half::kValues, h));
            const auto found = stored(stream, i, Half::kKeys, h),
                       wanted = stored(expected, i, Half::kKeys, h);
            // A number may round the other way.
            EXPECT_LE(worst_error(found.data(), wanted.data(), head_dim, largest_of(wanted)),
                      type == DType::kFloat32 ? 1e-6 : tolerance_of(type) / 4)
                << text_of(spec) << " token " << i;
          }
        }
      }
    }
  }
}

TEST_P(EvictTest, KeepsNan) {
  ThreadPool pool(1);
  for (const DType type : kTypes) {
    StreamSpec spec = make_spec(4, 130, 2, 1, 16, type);
    TestStream stream(spec, table());
    read_all(&stream, table(), &pool, 0, 300, 64);
    const int64_t first = spec.window.first(300);
    stream.poison(first + 1);
    cut(&stream, table().evict, 300, 3, 10, &pool);
    for (const Half half : {Half::kKeys, Half::kValues}) {
      for (int64_t i = 0; i < 3; ++i) {
        for (const float x : stored(stream, first + 10 + i, half, 0)) {
          EXPECT_EQ(std::isnan(x), i == 1) << name_of(type) << " token " << i;
        }
      }
    }
  }
}

SINKSTREAM_TEST_ALL_TABLES(EvictTest);

}  // namespace
}  // namespace sinkstream
