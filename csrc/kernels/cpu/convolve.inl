#pragma once

#include "kernels/cpu/activation.inl"

// kLanes channels of a span, from `channel` on; of the last ones of a row, the first `lanes`.
SINKSTREAM_INLINE void convolve_channels(const ConvolveArgs& args, const StateSpan& span,
                                         int64_t channel, int64_t lanes) {
  const int64_t taps = args.taps;
  const auto read = [&](const float* from) {
    return lanes == kLanes ? load(from + channel) : load_first(from + channel, lanes);
  };
  const auto write = [&](float* to, Vec x) {
    if (lanes == kLanes) return store(to + channel, x);
    store_first(to + channel, x, lanes);
  };
  // x of the span's token t, or of one before it; the product with the gate has the same bits each
  // time.
  const auto input = [&](int64_t t) {
    if (t < 0) return read(span.read + (taps - 1 + t) * args.channels);
    const int64_t at = (span.row + t) * args.stride;
    const Vec x = read(args.input + at);
    return args.input_gate == nullptr ? x : read(args.input_gate + at) * x;
  };
  Vec weights[kMostTaps];  // columns of `weight`
  for (int64_t k = 0; k < taps; ++k) {
    weights[k] = Vec{};
    for (int64_t lane = 0; lane < lanes; ++lane) {
      weights[k][lane] = args.weight[(channel + lane) * taps + k];
    }
  }
  const Vec bias = args.bias == nullptr ? Vec{} : read(args.bias);
  for (int64_t t = 0; t < span.count; ++t) {
    Vec sum = bias;
    for (int64_t k = 0; k < taps; ++k) sum = fma(weights[k], input(t - taps + 1 + k), sum);
    if (args.silu) sum = times_sigmoid(sum, sum);
    const int64_t row = span.row + t;
    if (args.output_gate != nullptr) sum = sum * read(args.output_gate + row * args.stride);
    write(args.out + row * args.channels, sum);
  }
  for (int64_t i = 0; i < taps - 1; ++i) {
    write(span.write + i * args.channels, input(span.count - taps + 1 + i));
  }
}

// A task is some channels of a span, whose few rows of inputs stay in L1. Each channel is computed
// alone, so where a task begins changes no bit.
void convolve(const ConvolveArgs& args, const Launch& launch) {
  constexpr int64_t kChannels = 256;
  const int64_t parts = divide_up(args.channels, kChannels);
  launch.pool->run(args.span_count * parts, [&](int64_t task, int) {
    const StateSpan& span = args.spans[task / parts];
    const int64_t begin = task % parts * kChannels;
    const int64_t end = begin + kChannels < args.channels ? begin + kChannels : args.channels;
    for (int64_t channel = begin; channel < end; channel += kLanes) {
      convolve_channels(args, span, channel, end - channel < kLanes ? end - channel : kLanes);
    }
  });
}
