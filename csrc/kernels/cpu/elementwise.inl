#pragma once

#include "kernels/cpu/math.inl"

// Calls body(first, count) for vectors that cover `count` elements; only a task's last one has
// fewer than kLanes. Each lane is computed alone, so where a vector begins changes no bit.
template <typename Body>
SINKSTREAM_INLINE void for_each_vector(int64_t elements, const Launch& launch, const Body& body) {
  constexpr int64_t kFloats = 8192;  // per task: waking another thread is not worth it for fewer
  const int64_t tasks = divide_up(elements, kFloats);
  launch.pool->run(tasks, [&](int64_t task, int) {
    const int64_t end = elements * (task + 1) / tasks;
    int64_t i = elements * task / tasks;
    for (; i + kLanes <= end; i += kLanes) body(i, kLanes);
    if (i < end) body(i, end - i);
  });
}

// Replaces each x by function(x).
template <typename Function>
SINKSTREAM_INLINE void replace_each(float* values, int64_t count, const Launch& launch,
                                    const Function& function) {
  for_each_vector(count, launch, [&](int64_t i, int64_t lanes) {
    if (lanes == kLanes) return store(values + i, function(load(values + i)));
    store_first(values + i, function(load_first(values + i, lanes)), lanes);
  });
}

void add_scaled(const AddScaledArgs& args, const Launch& launch) {
  const Vec scale = broadcast(args.scale);
  for_each_vector(args.rows * args.dim, launch, [&](int64_t i, int64_t lanes) {
    const float* input = args.input + i;
    float* out = args.out + i;
    if (lanes == kLanes) return store(out, fma(load(input), scale, load(out)));
    store_first(out, fma(load_first(input, lanes), scale, load_first(out, lanes)), lanes);
  });
}

void soft_cap(const SoftCapArgs& args, const Launch& launch) {
  const int64_t count = args.rows * args.dim;
  const float scale = args.scale;
  const float cap = args.cap;
  if (cap == 0) return replace_each(args.values, count, launch, [&](Vec x) { return scale * x; });
  replace_each(args.values, count, launch, [&](Vec x) { return cap * tanh(scale * x / cap); });
}

void clamp(const ClampArgs& args, const Launch& launch) {
  const Vec limit = broadcast(args.limit);
  replace_each(args.values, args.rows * args.dim, launch,
               [&](Vec x) { return max(-limit, min(limit, x)); });  // in this order, NaN stays NaN
}
