#pragma once

#include "kernels/cpu/math.inl"

// x / (1 + e^−x), computed from e^−|x|, which cannot overflow.
SINKSTREAM_INLINE Vec silu(Vec x) {
  const Vec e = exp_nonpositive(select(x > 0.0f, -x, x));
  return select(x > 0.0f, x, x * e) / (e + 1.0f);
}

void swiglu(const SwigluArgs& args, const Launch& launch) {
  // Waking another thread is not worth it for a row of up to kColumns columns; a wider row is
  // divided evenly.
  constexpr int64_t kColumns = 4096;
  const int64_t chunks = divide_up(args.dim, kColumns);
  launch.pool->run(args.rows * chunks, [&](int64_t task, int) {
    const int64_t begin = args.dim * (task % chunks) / chunks;
    const int64_t count = args.dim * (task % chunks + 1) / chunks - begin;
    const int64_t offset = task / chunks * args.stride + begin;
    const float* gate = args.gate + offset;
    const float* up = args.up + offset;
    float* out = args.out + offset;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      store(out + i, silu(load(gate + i)) * load(up + i));
    }
    const int64_t rest = count - i;
    store_first(out + i, silu(load_first(gate + i, rest)) * load_first(up + i, rest), rest);
  });
}
