#pragma once

// Σ term(x) in one order: four vector sums in rotation, then a tree over sums and lanes.
// `add(sum, x)` adds the terms of a vector; lanes past the end are `neutral`, whose term is 0.
template <typename Add>
SINKSTREAM_INLINE float sum_over(const float* x, int64_t count, float neutral, const Add& add) {
  Vec sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int chain = 0; chain < 4; ++chain) {
      sums[chain] = add(sums[chain], load(x + i + chain * kLanes));
    }
  }
  for (int chain = 0; i < count; i += kLanes, ++chain) {
    const Vec part = count - i < kLanes ? load_first(x + i, count - i, neutral) : load(x + i);
    sums[chain] = add(sums[chain], part);
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <NormKind kKind, bool kHasBias>
SINKSTREAM_INLINE void normalize_row(const NormArgs& args, int64_t r) {
  const float* input = args.input + r * args.input_stride;
  float* out = args.out + r * args.out_stride;
  const auto dim = static_cast<double>(args.dim);
  float mean = 0;
  if constexpr (kKind == NormKind::kLayer) {
    const float sum = sum_over(input, args.dim, 0, [](Vec sum, Vec x) { return sum + x; });
    mean = static_cast<float>(sum / dim);
  }
  const auto centered = [mean](auto x) {
    if constexpr (kKind == NormKind::kLayer) x = x - mean;
    return x;
  };
  const float squares = sum_over(input, args.dim, mean, [&](Vec sum, Vec x) {
    const Vec deviation = centered(x);
    return fma(deviation, deviation, sum);
  });
  const auto factor = static_cast<float>(1 / std::sqrt(squares / dim + args.eps));
  int64_t d = 0;
  for (; d + kLanes <= args.dim; d += kLanes) {
    Vec x = centered(load(input + d)) * factor * load(args.weight + d);
    if constexpr (kHasBias) x += load(args.bias + d);
    store(out + d, x);
  }
  for (; d < args.dim; ++d) {
    float x = centered(input[d]) * factor * args.weight[d];
    if constexpr (kHasBias) x += args.bias[d];
    out[d] = x;
  }
}

template <NormKind kKind, bool kHasBias>
void normalize(const NormArgs& args, const Launch& launch) {
  constexpr int64_t kFloats = 8192;  // per task: waking another thread is not worth it for fewer
  const int64_t pieces = divide_up(args.rows * args.dim, kFloats);
  const int64_t tasks = pieces < args.rows ? pieces : args.rows;
  launch.pool->run(tasks, [&](int64_t task, int) {
    const int64_t end = args.rows * (task + 1) / tasks;
    for (int64_t r = args.rows * task / tasks; r < end; ++r) {
      normalize_row<kKind, kHasBias>(args, r);
    }
  });
}

template <NormKind kKind>
void normalize(const NormArgs& args, const Launch& launch) {
  if (args.bias != nullptr) return normalize<kKind, true>(args, launch);
  normalize<kKind, false>(args, launch);
}

void norm(const NormArgs& args, const Launch& launch) {
  if (args.kind == NormKind::kLayer) return normalize<NormKind::kLayer>(args, launch);
  normalize<NormKind::kRms>(args, launch);
}
