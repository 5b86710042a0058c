#pragma once

// Σ x² in one order: four vector sums in rotation, then a tree over sums and lanes.
SINKSTREAM_INLINE float sum_of_squares(const float* x, int64_t count) {
  Vec sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int chain = 0; chain < 4; ++chain) {
      const Vec part = load(x + i + chain * kLanes);
      sums[chain] = fma(part, part, sums[chain]);
    }
  }
  for (int chain = 0; i < count; i += kLanes, ++chain) {
    const Vec part = count - i < kLanes ? load_first(x + i, count - i) : load(x + i);
    sums[chain] = fma(part, part, sums[chain]);
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

SINKSTREAM_INLINE void normalize_row(const RmsNormArgs& args, int64_t r) {
  const float* input = args.input + r * args.input_stride;
  float* out = args.out + r * args.out_stride;
  const double mean = double{sum_of_squares(input, args.dim)} / static_cast<double>(args.dim);
  const auto factor = static_cast<float>(1 / std::sqrt(mean + args.eps));
  int64_t d = 0;
  for (; d + kLanes <= args.dim; d += kLanes) {
    store(out + d, load(input + d) * factor * load(args.weight + d));
  }
  for (; d < args.dim; ++d) out[d] = input[d] * factor * args.weight[d];
}

void rms_norm(const RmsNormArgs& args, const Launch& launch) {
  constexpr int64_t kFloats = 8192;  // per task: waking another thread is not worth it for fewer
  const int64_t pieces = divide_up(args.rows * args.dim, kFloats);
  const int64_t tasks = pieces < args.rows ? pieces : args.rows;
  launch.pool->run(tasks, [&](int64_t task, int) {
    const int64_t end = args.rows * (task + 1) / tasks;
    for (int64_t r = args.rows * task / tasks; r < end; ++r) normalize_row(args, r);
  });
}
