#pragma once

#include "kernels/cpu/math.inl"

// x / (1 + e^−z), computed from e^−|z|, which cannot overflow.
SINKSTREAM_INLINE Vec times_sigmoid(Vec x, Vec z) {
  const Vec e = exp_nonpositive(select(z > 0.0f, -z, z));
  return select(z > 0.0f, x, x * e) / (e + 1.0f);
}

// e^x − 1 − x for x <= 0, without cancellation: near 0 as the sum of its powers, to 1e-8.
SINKSTREAM_INLINE Vec exp_minus_line(Vec x) {
  Vec y = broadcast(1.0f / 362880);
  y = fma(y, x, broadcast(1.0f / 40320));
  y = fma(y, x, broadcast(1.0f / 5040));
  y = fma(y, x, broadcast(1.0f / 720));
  y = fma(y, x, broadcast(1.0f / 120));
  y = fma(y, x, broadcast(1.0f / 24));
  y = fma(y, x, broadcast(1.0f / 6));
  y = fma(y, x, broadcast(0.5f));
  return select(x > -0.6f, y * x * x, exp_nonpositive(x) - 1.0f - x);
}

// What kXielu needs of its numbers.
struct XieluVecs {
  explicit XieluVecs(const Xielu& from)
      : positive(broadcast(from.positive)),
        negative(broadcast(from.negative)),
        slope(broadcast(from.slope)),
        knee(broadcast(from.knee)) {}
  Vec positive, negative, slope, knee;
};

template <Activation kKind>
SINKSTREAM_INLINE Vec activate(Vec x, [[maybe_unused]] const XieluVecs& xielu) {
  if constexpr (kKind == Activation::kXielu) {
    const Vec bent = min(xielu.knee, x);  // in this order, NaN stays NaN
    const Vec falling = xielu.negative * (exp_minus_line(bent) + (bent - x));
    return fma(xielu.slope, x, select(x > 0.0f, xielu.positive * x * x, falling));
  }
  if constexpr (kKind == Activation::kSilu) return times_sigmoid(x, x);
  if constexpr (kKind == Activation::kGelu) return x * normal_cdf(x);
  if constexpr (kKind == Activation::kGeluTanh) {
    // (1 + tanh y) / 2 = 1 / (1 + e^−2y), without cancellation. The factors: 2 √(2/π).
    const Vec cubed = x * x * x;
    return times_sigmoid(x, fma(cubed, broadcast(0.044715f), x) * 1.5957691216f);
  }
  if constexpr (kKind == Activation::kRelu2) {
    const Vec positive = max(Vec{}, x);  // in this order, NaN stays NaN
    return positive * positive;
  }
  if constexpr (kKind == Activation::kClampedSwiglu) {
    const Vec gate = min(broadcast(kSwigluLimit), x);  // in this order, NaN stays NaN
    return times_sigmoid(gate, gate * kSwigluSlope);
  }
}

// What the activated gate is multiplied by.
template <Activation kKind>
SINKSTREAM_INLINE Vec factor_of(Vec up) {
  if constexpr (kKind != Activation::kClampedSwiglu) return up;
  const Vec limit = broadcast(kSwigluLimit);
  return max(-limit, min(limit, up)) + 1.0f;
}

template <Activation kKind, bool kIsGated>
void activate_rows(const ActivationArgs& args, const Launch& launch) {
  // Waking another thread is not worth it for a row of up to kColumns columns; a wider row is
  // divided evenly.
  constexpr int64_t kColumns = 4096;
  const int64_t chunks = divide_up(args.dim, kColumns);
  const XieluVecs xielu(args.xielu);
  launch.pool->run(args.rows * chunks, [&](int64_t task, int) {
    const int64_t begin = args.dim * (task % chunks) / chunks;
    const int64_t count = args.dim * (task % chunks + 1) / chunks - begin;
    const int64_t offset = task / chunks * args.stride + begin;
    const float* gate = args.gate + offset;
    const float* up = kIsGated ? args.up + offset : nullptr;
    float* out = args.out + offset;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      Vec x = activate<kKind>(load(gate + i), xielu);
      if constexpr (kIsGated) x = x * factor_of<kKind>(load(up + i));
      store(out + i, x);
    }
    const int64_t rest = count - i;
    Vec x = activate<kKind>(load_first(gate + i, rest), xielu);
    if constexpr (kIsGated) x = x * factor_of<kKind>(load_first(up + i, rest));
    store_first(out + i, x, rest);
  });
}

template <Activation kKind>
void activate(const ActivationArgs& args, const Launch& launch) {
  if (args.up != nullptr) return activate_rows<kKind, true>(args, launch);
  activate_rows<kKind, false>(args, launch);
}

void activation(const ActivationArgs& args, const Launch& launch) {
  switch (args.kind) {
    case Activation::kSilu: return activate<Activation::kSilu>(args, launch);
    case Activation::kGelu: return activate<Activation::kGelu>(args, launch);
    case Activation::kGeluTanh: return activate<Activation::kGeluTanh>(args, launch);
    case Activation::kRelu2: return activate<Activation::kRelu2>(args, launch);
    case Activation::kClampedSwiglu: return activate<Activation::kClampedSwiglu>(args, launch);
    case Activation::kXielu: return activate<Activation::kXielu>(args, launch);
  }
}
