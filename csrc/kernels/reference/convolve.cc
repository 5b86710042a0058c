#include "kernels/convolve.h"

#include <cmath>

#include "kernels/reference/reference.h"

namespace sinkstream::reference {

namespace {

// x of a channel, `back` tokens before the span's token t.
float earlier(const ConvolveArgs& args, const StateSpan& span, int64_t t, int64_t back,
              int64_t channel) {
  if (back > t) return span.read[(args.taps - 1 + t - back) * args.channels + channel];
  const int64_t at = (span.row + t - back) * args.stride + channel;
  return args.input_gate == nullptr ? args.input[at] : args.input_gate[at] * args.input[at];
}

void convolve_channel(const ConvolveArgs& args, const StateSpan& span, int64_t channel) {
  const int64_t taps = args.taps;
  for (int64_t t = 0; t < span.count; ++t) {
    double sum = args.bias == nullptr ? 0 : args.bias[channel];
    for (int64_t k = 0; k < taps; ++k) {
      sum +=
          double{args.weight[channel * taps + k]} * earlier(args, span, t, taps - 1 - k, channel);
    }
    if (args.silu) sum /= 1 + std::exp(-sum);
    const int64_t row = span.row + t;
    if (args.output_gate != nullptr) sum *= args.output_gate[row * args.stride + channel];
    args.out[row * args.channels + channel] = static_cast<float>(sum);
  }
  for (int64_t i = 0; i < taps - 1; ++i) {
    span.write[i * args.channels + channel] =
        earlier(args, span, span.count - 1, taps - 2 - i, channel);
  }
}

}  // namespace

void convolve(const ConvolveArgs& args, const Launch& launch) {
  launch.pool->run(args.span_count * args.channels, [&](int64_t task, int) {
    convolve_channel(args, args.spans[task / args.channels], task % args.channels);
  });
}

}  // namespace sinkstream::reference
