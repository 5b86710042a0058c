#include "kernels/convolve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/guarded.h"
#include "kernels/matrix.h"
#include "kernels/tables.h"
#include "lanes.h"

namespace sinkstream {
namespace {

// The inputs of one sequence, as a linear map writes them: [tokens, input gate │ output gate │
// input], as in LFM2.
struct Text {
  Text(int64_t token_count, int64_t channel_count, int64_t tap_count, uint32_t seed = 1)
      : tokens(token_count),
        channels(channel_count),
        taps(tap_count),
        rows(random_floats(tokens * 3 * channels, seed)),
        weight(random_floats(channels * taps, 2)),
        bias(random_floats(channels, 3)) {}

  // `row`: where the text's tokens begin in `from`.
  ConvolveArgs args(const std::vector<float>& from, float* out) const {
    return {.input = from.data() + 2 * channels,
            .input_gate = from.data(),
            .output_gate = from.data() + channels,
            .stride = 3 * channels,
            .weight = weight.data(),
            .bias = bias.data(),
            .out = out,
            .channels = channels,
            .taps = taps};
  }
  int64_t state_size() const { return (taps - 1) * channels; }

  int64_t tokens, channels, taps;
  std::vector<float> rows, weight, bias;
};

// Which terms a convolution has.
struct Terms {
  bool input_gate, output_gate, bias, silu;
};
std::vector<Terms> all_terms() {
  std::vector<Terms> all;
  for (int bits = 0; bits < 16; ++bits) {
    all.push_back({(bits & 1) > 0, (bits & 2) > 0, (bits & 4) > 0, (bits & 8) > 0});
  }
  return all;
}
ConvolveArgs with_terms(ConvolveArgs args, const Terms& terms) {
  if (!terms.input_gate) args.input_gate = nullptr;
  if (!terms.output_gate) args.output_gate = nullptr;
  if (!terms.bias) args.bias = nullptr;
  args.silu = terms.silu;
  return args;
}

// The definition: x_{t − taps + 1 + k} for k = 0 .. taps − 1, of all tokens of the text.
double expected(const Text& text, const Terms& terms, int64_t t, int64_t channel) {
  const auto at = [&](int64_t token, int64_t part) {
    return double{text.rows[(token * 3 + part) * text.channels + channel]};
  };
  double sum = terms.bias ? text.bias[channel] : 0;
  for (int64_t k = 0; k < text.taps; ++k) {
    const int64_t token = t - text.taps + 1 + k;
    if (token < 0) continue;
    sum +=
        text.weight[channel * text.taps + k] * at(token, 2) * (terms.input_gate ? at(token, 0) : 1);
  }
  if (terms.silu) sum = sum / (1 + std::exp(-sum));
  return terms.output_gate ? sum * at(t, 1) : sum;
}

class ConvolveTest : public TableTest<&Kernels::convolve> {
 protected:
  // The outputs of a text that is read in spans of at most `chunk` tokens, [tokens, channels].
  std::vector<float> read(const Text& text, const Terms& terms, int64_t chunk, ThreadPool* pool) {
    std::vector<float> found(text.tokens * text.channels);
    Guarded lanes[2] = {Guarded(text.state_size(), 3), Guarded(text.state_size(), 7)};
    std::fill_n(lanes[0].get(), text.state_size(), 0.0f);
    for (int64_t t = 0, step = 0; t < text.tokens; t += chunk, ++step) {
      const int64_t count = std::min(chunk, text.tokens - t);
      Guarded out(count * text.channels, 5);
      ConvolveArgs args = with_terms(text.args(text.rows, out.get()), terms);
      const int64_t before = t * args.stride;
      args.input += before;
      if (terms.input_gate) args.input_gate += before;
      if (terms.output_gate) args.output_gate += before;
      Guarded& to = lanes[(step + 1) % 2];
      std::fill_n(to.get(), text.state_size(), std::numeric_limits<float>::quiet_NaN());
      const StateSpan span = {0, count, lanes[step % 2].get(), to.get()};
      args.spans = &span;
      args.span_count = 1;
      table().convolve(args, {pool});
      EXPECT_TRUE(out.is_intact() && lanes[0].is_intact() && lanes[1].is_intact());
      std::copy_n(out.get(), out.count(), found.begin() + t * text.channels);
    }
    return found;
  }
};

TEST_P(ConvolveTest, IsItsDefinitionWithAndWithoutEachTerm) {
  ThreadPool pool(2);
  for (const auto& [s, channels] : indexed({1, 3, 8, 15, 16, 17, 33, 600})) {
    for (const auto& [k, taps] : indexed({2, 3, 4, 7})) {
      const Text text(11, channels, taps);
      for (const auto& [i, terms] : indexed(all_terms())) {
        if (!runs_case(3, {s, k, i})) continue;
        const std::vector<float> found = read(text, terms, 11, &pool);
        for (int64_t t = 0; t < text.tokens; ++t) {
          for (int64_t c = 0; c < channels; ++c) {
            const double want = expected(text, terms, t, c);
            // Each product and sum is rounded once; no term is above 64.
            EXPECT_NEAR(found[t * channels + c], want, 1e-6 * (8 + std::abs(want)))
                << channels << " channels, " << taps << " taps, terms " << i << ", token " << t;
          }
        }
      }
    }
  }
}

TEST_P(ConvolveTest, NeitherSpansNorThreadsChangeABit) {  // tsan
  ThreadPool one(1), three(3);
  for (const int64_t taps : {2, 3, 4, 7, 64}) {
    const Text text(150, 301, taps);
    const Terms terms = {true, true, true, true};
    const std::vector<float> whole = read(text, terms, text.tokens, &one);
    for (const int64_t chunk : {1, 2, 7, 64}) {
      const std::vector<float> found = read(text, terms, chunk, chunk == 7 ? &three : &one);
      EXPECT_TRUE(same_bits(found.data(), whole.data(), std::ssize(whole)))
          << taps << " taps, spans of " << chunk;
    }
    const std::vector<float> found = read(text, terms, text.tokens, &three);
    EXPECT_TRUE(same_bits(found.data(), whole.data(), std::ssize(whole))) << taps << " taps";
  }
}

// Each sequence has its own state, and rows of others are not read: NaN in them does not spread.
TEST_P(ConvolveTest, ASequenceHasTheSameBitsAloneAndAmongOthers) {  // tsan
  constexpr int64_t kChannels = 70, kTaps = 4;
  ThreadPool threads(3), one(1);
  const std::vector<int64_t> counts = {1, 5, 2, 9, 1, 3};
  std::vector<std::vector<float>> before, after;
  std::vector<float> rows;
  int64_t tokens = 0;
  for (const auto& [i, count] : indexed(counts)) {
    const Text text(count, kChannels, kTaps, 10 + static_cast<uint32_t>(i));
    rows.insert(rows.end(), text.rows.begin(), text.rows.end());
    before.push_back(random_floats(text.state_size(), 20 + static_cast<uint32_t>(i)));
    after.emplace_back(text.state_size(), NAN);
    tokens += count;
  }
  before[2].assign(before[2].size(), NAN);
  const Text text(tokens, kChannels, kTaps);
  Guarded together(tokens * kChannels);
  std::vector<StateSpan> spans;
  for (int64_t i = 0, row = 0; i < std::ssize(counts); row += counts[i++]) {
    spans.push_back({row, counts[i], before[i].data(), after[i].data()});
  }
  ConvolveArgs args = text.args(rows, together.get());
  args.spans = spans.data();
  args.span_count = std::ssize(spans);
  table().convolve(args, {&threads});
  for (const auto& [i, span] : indexed(spans)) {
    Guarded alone(span.count * kChannels, 9);
    std::vector<float> state(text.state_size(), NAN);
    const std::vector<float> own(rows.begin() + span.row * args.stride,
                                 rows.begin() + (span.row + span.count) * args.stride);
    const StateSpan only = {0, span.count, span.read, state.data()};
    ConvolveArgs its_args = text.args(own, alone.get());
    its_args.spans = &only;
    its_args.span_count = 1;
    table().convolve(its_args, {&one});
    EXPECT_TRUE(same_bits(together.get() + span.row * kChannels, alone.get(), alone.count())) << i;
    EXPECT_TRUE(same_bits(after[i].data(), state.data(), text.state_size())) << i;
    EXPECT_EQ(std::isnan(alone[0]), i == 2) << i;
  }
}

SINKSTREAM_TEST_ALL_TABLES(ConvolveTest);

}  // namespace
}  // namespace sinkstream
